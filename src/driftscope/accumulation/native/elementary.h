/* Functions of single floats, rows of softmax and of layer normalisation; included once per instruction set.
 *
 * Every function is a fixed list of float operations, an fma wherever FMA is written and nowhere else, so lanes, tails and
 * machines agree. Sums over a row take either 16 fixed lanes (layer normalisation) or integers (softmax).
 * The includer defines NAME(x), TARGET, WIDTH (bytes of a vector), FMA, and the conversions WIDE and NARROW.
 */

typedef float NAME(vf) __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef int32_t NAME(vi) __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef double NAME(vd) __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef uint64_t NAME(vq) __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef float NAME(half) __attribute__((vector_size(WIDTH / 2), aligned(4), may_alias));

#define VF NAME(vf)
#define VI NAME(vi)
#define VD NAME(vd)
#define VQ NAME(vq)
#define HALF NAME(half)
#define FLOATS (WIDTH / 4)
#define DOUBLES (WIDTH / 8)
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define CHOOSE(condition, a, b) (VF)(((condition) & (VI)(a)) | (~(condition) & (VI)(b)))
#define AT(p) (*(const VF *)(p))
#define QUIET(x) CHOOSE((x) != (x), (VI)((VI){0} + QUIET_NAN), x)

/* exp(x + rest) for x <= 0 and a rest that is small beside one; NaN stays NaN. */
INLINE VF NAME(power)(VF x, VF rest) {
    x = CHOOSE(x < LOWEST, (VF){0} + LOWEST, x);
    VF shifted = FMA(x, (VF){0} + LOG2_E, (VF){0} + SHIFT), whole = shifted - SHIFT;
    VF r = FMA(whole, (VF){0} - LN2_HIGH, x);
    r = FMA(whole, (VF){0} - LN2_LOW, r) + rest;
    VF p = (VF){0} + POWERS[0];
    UNROLL
    for (int k = 1; k < 7; k++) p = FMA(p, r, (VF){0} + POWERS[k]);
    /* In two steps, so that a subnormal result is rounded once. */
    VI n = (VI)shifted - SHIFT_BITS, first = n >> 1;
    return p * (VF)((first + 127) << 23) * (VF)((n - first + 127) << 23);
}

INLINE VF NAME(size)(VF x) { return (VF)((VI)x & 0x7fffffff); }

INLINE VF NAME(sigmoid)(VF x) {
    VF e = NAME(power)(-NAME(size)(x), (VF){0});
    return CHOOSE(x < 0, e, (VF){0} + 1.0f) / (e + 1.0f);
}

INLINE VF NAME(tanh)(VF x) {
    VF a = NAME(size)(x), e = NAME(power)(a * -2.0f, (VF){0}), far = (1.0f - e) / (1.0f + e);
    VF square = a * a, p = (VF){0} + NEAR_ZERO[0];
    UNROLL
    for (int k = 1; k < 5; k++) p = FMA(p, square, (VF){0} + NEAR_ZERO[k]);
    VF near = FMA(a * square, p, a);
    return (VF)((VI)CHOOSE(a < TANH_NEAR, near, far) | ((VI)x & INT32_MIN));
}

/* x times the share of a normal distribution below x; of the tail, exp(-x^2 / 2) times a slow function of |x|. */
INLINE VF NAME(gelu)(VF x) {
    VF a = NAME(size)(x);
    a = CHOOSE(a > FARTHEST, (VF){0} + FARTHEST, a);
    VF square = a * a, lost = FMA(a, a, -square), u = (a - 3.0f) / (a + 3.0f), g = (VF){0} + TAIL[0];
    UNROLL
    for (int k = 1; k < 10; k++) g = FMA(g, u, (VF){0} + TAIL[k]);
    VF below = NAME(power)(square * -0.5f, lost * -0.5f) * g;
    return x * CHOOSE(x < 0, below, 1.0f - below);
}

INLINE VF NAME(gelu_of_tanh)(VF x) {
    VF cubed = x * x * x;
    return x * NAME(sigmoid)((x + cubed * 0.044715f) * TWICE_ROOT);
}

INLINE VF NAME(of_element)(int function, VF x) {
    switch (function) {
    case SIGMOID: return NAME(sigmoid)(x);
    case TANH: return NAME(tanh)(x);
    case SILU: return x * NAME(sigmoid)(x);
    case GELU: return NAME(gelu)(x);
    default: return NAME(gelu_of_tanh)(x);
    }
}

INLINE void NAME(of_elements)(int function, const float *x, int64_t n, float *out) {
    int64_t i = 0;
    for (; i + FLOATS <= n; i += FLOATS) {
        VF y = NAME(of_element)(function, AT(x + i));
        *(VF *)(out + i) = QUIET(y);
    }
    if (i < n) {
        float last[FLOATS] = {0};
        memcpy(last, x + i, sizeof(float) * (size_t)(n - i));
        VF y = NAME(of_element)(function, AT(last));
        *(VF *)last = QUIET(y);
        memcpy(out + i, last, sizeof(float) * (size_t)(n - i));
    }
}

TARGET static void NAME(elements)(int function, const float *x, int64_t n, float *out) {
    /* Written out, so that each loop holds one function. */
    if (function == SIGMOID) NAME(of_elements)(SIGMOID, x, n, out);
    else if (function == TANH) NAME(of_elements)(TANH, x, n, out);
    else if (function == SILU) NAME(of_elements)(SILU, x, n, out);
    else if (function == GELU) NAME(of_elements)(GELU, x, n, out);
    else NAME(of_elements)(GELU_OF_TANH, x, n, out);
}

/* The largest of a row; NaN if there is one. */
INLINE float NAME(largest)(const float *x, int64_t n) {
    VF most = (VF){0} - INFINITY;
    VI unordered = {0};
    int64_t i = 0;
    for (; i + FLOATS <= n; i += FLOATS) {
        VF v = AT(x + i);
        unordered |= v != v;
        most = CHOOSE(v > most, v, most);
    }
    float found = -INFINITY;
    int odd = 0;
    UNROLL
    for (int k = 0; k < FLOATS; k++) {
        odd |= unordered[k];
        found = most[k] > found ? most[k] : found;
    }
    for (; i < n; i++) {
        odd |= x[i] != x[i];
        found = x[i] > found ? x[i] : found;
    }
    return odd ? NAN : found;
}

/* Exponentials of a block of at most BLOCK elements, and their sum in units of 2^-51 as integers modulo 2^64. */
INLINE uint64_t NAME(powers)(const float *x, int64_t n, float most, float *out) {
    VQ sum = {0};
    int64_t i = 0;
    for (; i < n; i += FLOATS) {
        float last[FLOATS];
        const float *from = x + i;
        float *to = out + i;
        if (i + FLOATS > n) {
            for (int k = 0; k < FLOATS; k++) last[k] = i + k < n ? from[k] : -INFINITY;
            from = to = last;
        }
        *(VF *)to = NAME(power)(AT(from) - most, (VF){0});
        sum += (VQ)(WIDE(to) + 2.0) + (VQ)(WIDE(to + DOUBLES) + 2.0);
        if (to == last) memcpy(out + i, last, sizeof(float) * (size_t)(n - i));
    }
    uint64_t whole = 0;
    UNROLL
    for (int k = 0; k < DOUBLES; k++) whole += sum[k];
    return whole - (uint64_t)i * 0x4000000000000000; /* the bits of 2.0, once for each element */
}

/* Softmax of one row; statistics: its largest element, and the sum of its exponentials. Integers have no order, so permuting or padding a row with -inf changes nothing. */
TARGET static void NAME(softmax_row)(const float *x, int64_t n, int masked_is_zero, float *out, float *statistics) {
    float most = NAME(largest)(x, n);
    statistics[0] = most;
    statistics[1] = 0.0f;
    if (!(most - most == 0)) {
        float all = most == -INFINITY && masked_is_zero ? 0.0f : NAN;
        for (int64_t i = 0; i < n; i++) out[i] = all;
        return;
    }
    uint64_t high = 0, low = 0;
    for (int64_t start = 0; start < n; start += BLOCK) {
        uint64_t part = NAME(powers)(x + start, n - start < BLOCK ? n - start : BLOCK, most, out + start);
        high += part >> 20;
        low += part & 0xfffff;
    }
    float total = (float)((double)(int64_t)high * 0x1p-31 + (double)(int64_t)low * 0x1p-51);
    int64_t i = 0;
    statistics[1] = total;
    for (; i + FLOATS <= n; i += FLOATS) *(VF *)(out + i) = AT(out + i) / total;
    for (; i < n; i++) out[i] /= total;
}

/* Sixteen lanes, element i in lane i % 16, joined by halves. */
INLINE double NAME(joined)(const VD *lane) {
    double s[16];
    memcpy(s, lane, sizeof s);
    UNROLL
    for (int step = 8; step; step /= 2)
        UNROLL
        for (int i = 0; i < step; i++) s[i] += s[i + step];
    return s[0];
}

TARGET static void NAME(norm_row)(const float *x, int64_t n, const float *weight, const float *bias, double eps,
                                  float *out, float *mean_out, float *scale_out) {
    VD lane[16 / DOUBLES] = {{0}}, square[16 / DOUBLES] = {{0}};
    float last[16] = {0};
    int64_t whole = n & ~15;
    memcpy(last, x + whole, sizeof(float) * (size_t)(n - whole));
    for (int64_t i = 0; i < whole; i += 16)
        UNROLL
        for (int k = 0; k < 16 / DOUBLES; k++) lane[k] += WIDE(x + i + k * DOUBLES);
    UNROLL
    for (int k = 0; k < 16 / DOUBLES; k++) lane[k] += WIDE(last + k * DOUBLES);
    double mean = NAME(joined)(lane) / (double)n;
    for (int64_t i = 0; i < whole; i += 16)
        UNROLL
        for (int k = 0; k < 16 / DOUBLES; k++) {
            VD d = WIDE(x + i + k * DOUBLES) - mean;
            square[k] += d * d;
        }
    for (int64_t i = whole; i < n; i++) {
        double d = (double)x[i] - mean;
        ((double *)square)[i - whole] += d * d;
    }
    double scale = 1.0 / sqrt(NAME(joined)(square) / (double)n + eps);
    *mean_out = (float)mean;
    *scale_out = (float)scale;
    if (!(scale - scale == 0 && mean - mean == 0)) { /* the sign of a NaN is the machine's, so it is written here */
        for (int64_t i = 0; i < n; i++) out[i] = NAN;
        return;
    }
    int64_t i = 0;
    for (; i + DOUBLES <= n; i += DOUBLES) {
        VD y = (WIDE(x + i) - mean) * scale;
        if (weight) y *= WIDE(weight + i);
        if (bias) y += WIDE(bias + i);
        *(HALF *)(out + i) = NARROW(y);
    }
    for (; i < n; i++) {
        double y = ((double)x[i] - mean) * scale;
        if (weight) y *= (double)weight[i];
        if (bias) y += (double)bias[i];
        out[i] = y == y ? (float)y : NAN;
    }
}

#undef NAME
#undef TARGET
#undef WIDTH
#undef FMA
#undef VF
#undef VI
#undef VD
#undef VQ
#undef HALF
#undef FLOATS
#undef DOUBLES
#undef INLINE
#undef UNROLL
#undef CHOOSE
#undef AT
#undef WIDE
#undef NARROW
#undef QUIET
