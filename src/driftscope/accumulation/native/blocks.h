/* Exact sums of one block of at most BLOCK elements, as one to three doubles; included once per instruction set.
 *
 * The includer defines NAME(x), TARGET, WIDTH (bytes of a vector) and the few operations that C's vector types lack.
 * Every function returns how many doubles it wrote to `out`; their exact sum is the block's. COUNT_WIDE means that the
 * block holds a NaN or an infinity, or spans more binades than three slices cover: the caller then adds its elements
 * one by one. No operation here is a product followed by a sum, so nothing can be contracted into an fma except in
 * the two-product, and the build forbids that.
 *
 * Why plain sums are exact: let |x| < 2^E, all x multiples of 2^lsb, and at most 2^11 of them. Every partial sum, in
 * any order, is a multiple of 2^lsb below 2^(E+11); it is a double when E + 11 - lsb <= 53.
 * Why slices are: with C = 1.5 * 2^(g+52), (x + C) - C is x rounded to a multiple of 2^g, and the rest is exact.
 */

typedef double NAME(vd) __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef uint64_t NAME(vq) __attribute__((vector_size(WIDTH), aligned(8), may_alias));
typedef float NAME(vs) __attribute__((vector_size(WIDTH / 2), aligned(2), may_alias));
typedef uint32_t NAME(vu) __attribute__((vector_size(WIDTH / 2), aligned(2), may_alias));
typedef uint16_t NAME(vh) __attribute__((vector_size(WIDTH / 4), aligned(2), may_alias));

#define VD NAME(vd)
#define VQ NAME(vq)
#define VS NAME(vs)
#define VU NAME(vu)
#define VH NAME(vh)
enum { NAME(LANES) = WIDTH / 8 };
#define LANES NAME(LANES)
#define INLINE TARGET static inline __attribute__((always_inline))

INLINE double NAME(total)(VD a) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += a[i];
    return sum;
}

INLINE uint64_t NAME(largest)(VQ a) {
    uint64_t m = 0;
    for (int i = 0; i < LANES; i++) m = a[i] > m ? a[i] : m;
    return m;
}

INLINE uint64_t NAME(smallest)(VQ a) {
    uint64_t m = ~0ull;
    for (int i = 0; i < LANES; i++) m = a[i] < m ? a[i] : m;
    return m;
}

/* Largest |bits|, and smallest |bits| - 1 where zero wraps round to the largest number. */
TARGET static void NAME(scan)(const double *x, int n, uint64_t *most, uint64_t *least) {
    VQ strip = (VQ){} + 0x7fffffffffffffff, high[4] = {{0}}, low[4];
    for (int j = 0; j < 4; j++) low[j] = strip;
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            VQ u = *(const VQ *)(x + i + j * LANES) & strip;
            high[j] = MAX64(high[j], u);
            low[j] = MIN64(low[j], (u - 1) & strip);
        }
    for (int j = 1; j < 4; j++) high[0] = MAX64(high[0], high[j]), low[0] = MIN64(low[0], low[j]);
    uint64_t m = NAME(largest)(high[0]), l = NAME(smallest)(low[0]);
    for (; i < n; i++) {
        uint64_t u = bits_of(x[i]) & 0x7fffffffffffffff, v = (u - 1) & 0x7fffffffffffffff;
        if (u > m) m = u;
        if (v < l) l = v;
    }
    *most = m;
    *least = l;
}

TARGET static double NAME(plain_sum)(const double *x, int n) {
    VD sum[8] = {{0}};
    int i = 0;
    for (; i + 8 * LANES <= n; i += 8 * LANES)
        for (int j = 0; j < 8; j++) sum[j] += *(const VD *)(x + i + j * LANES);
    double rest = 0;
    for (; i < n; i++) rest += x[i];
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    return rest + NAME(total)(sum[0]);
}

TARGET static void NAME(two_slices)(const double *x, int n, double c, double *out) {
    VD high[4] = {{0}}, low[4] = {{0}}, magic = (VD){} + c;
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            VD v = *(const VD *)(x + i + j * LANES), h = (v + magic) - magic;
            high[j] += h;
            low[j] += v - h;
        }
    for (int j = 1; j < 4; j++) high[0] += high[j], low[0] += low[j];
    out[0] = NAME(total)(high[0]);
    out[1] = NAME(total)(low[0]);
    for (; i < n; i++) {
        double h = (x[i] + c) - c;
        out[0] += h;
        out[1] += x[i] - h;
    }
}

TARGET static void NAME(three_slices)(const double *x, int n, double c, double d, double *out) {
    VD a = {0}, b = {0}, e = {0}, first = (VD){} + c, second = (VD){} + d;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        VD v = *(const VD *)(x + i), h = (v + first) - first, r = v - h, g = (r + second) - second;
        a += h;
        b += g;
        e += r - g;
    }
    out[0] = NAME(total)(a);
    out[1] = NAME(total)(b);
    out[2] = NAME(total)(e);
    for (; i < n; i++) {
        double h = (x[i] + c) - c, r = x[i] - h, g = (r + d) - d;
        out[0] += h;
        out[1] += g;
        out[2] += r - g;
    }
}

TARGET static int NAME(block_float64)(const void *data, int n, double *out) {
    const double *x = data;
    uint64_t most, least;
    NAME(scan)(x, n, &most, &least);
    if (most >= 0x7ff0000000000000) return COUNT_WIDE;
    int top = (int)(most >> 52), bottom = (int)((least + 1) >> 52);
    out[0] = 0;
    if (most == 0) return 1;
    int E = (top ? top : 1) - 1022, lsb = (bottom ? bottom : 1) - 1075;
    if (E > 960) return COUNT_WIDE;
    if (E + 11 - lsb <= 53) {
        out[0] = NAME(plain_sum)(x, n);
        return 1;
    }
    int g = E - 42; /* 2^11 multiples of 2^g, each at most 2^E */
    if (E - 90 < -1000) return COUNT_WIDE;
    if (lsb >= g - 43) { /* the rest is at most 2^(g-1): sums of 2^11 reach 2^(g+10) */
        NAME(two_slices)(x, n, POWER(g + 52) * 1.5, out);
        return 2;
    }
    if (lsb < g - 86) return COUNT_WIDE;
    NAME(three_slices)(x, n, POWER(g + 52) * 1.5, POWER(g - 43 + 52) * 1.5, out);
    return 3;
}

INLINE VD NAME(widen)(VS a) { return __builtin_convertvector(a, VD); }

INLINE VS NAME(load_float32)(const void *x, int i) { return *(const VS *)((const float *)x + i); }

INLINE VS NAME(load_bfloat16)(const void *x, int i) {
    VH h = *(const VH *)((const uint16_t *)x + i);
    return (VS)(__builtin_convertvector(h, VU) << 16);
}

INLINE VS NAME(load_float16)(const void *x, int i) { return (VS)LOAD_FLOAT16((const uint16_t *)x + i); }

/* Scan and plain sum in one pass over the data: nearly always the plain sum is exact. `units` is the number of
 * exponent steps from the format's own last bit to that of the float it is loaded as. */
#define NARROW_BLOCK(KIND, TAIL, PRECISION)                                                                       \
    TARGET static void NAME(doubles_##KIND)(const void *x, int n, double *out) {                                   \
        int i = 0;                                                                                                 \
        for (; i + LANES <= n; i += LANES) *(VD *)(out + i) = NAME(widen)(NAME(load_##KIND)(x, i));                \
        for (; i < n; i++) out[i] = TAIL(x, i);                                                                    \
    }                                                                                                              \
    TARGET static int NAME(block_##KIND)(const void *x, int n, double *out) {                                      \
        VD sum[4] = {{0}};                                                                                         \
        VU strip = (VU){} + 0x7fffffff, high[4] = {{0}}, low[4];                                                   \
        for (int j = 0; j < 4; j++) low[j] = strip;                                                                \
        int i = 0;                                                                                                 \
        for (; i + 4 * LANES <= n; i += 4 * LANES)                                                                 \
            for (int j = 0; j < 4; j++) {                                                                          \
                VS v = NAME(load_##KIND)(x, i + j * LANES);                                                        \
                VU u = (VU)v & strip;                                                                              \
                high[j] = MAX32(high[j], u);                                                                       \
                low[j] = MIN32(low[j], u - 1);                                                                     \
                sum[j] += NAME(widen)(v);                                                                          \
            }                                                                                                      \
        for (int j = 1; j < 4; j++) {                                                                              \
            sum[0] += sum[j];                                                                                      \
            high[0] = MAX32(high[0], high[j]);                                                                     \
            low[0] = MIN32(low[0], low[j]);                                                                        \
        }                                                                                                          \
        uint32_t most = 0, least = ~0u;                                                                            \
        for (int j = 0; j < LANES; j++) {                                                                          \
            if (high[0][j] > most) most = high[0][j];                                                              \
            if (low[0][j] < least) least = low[0][j];                                                              \
        }                                                                                                          \
        out[0] = NAME(total)(sum[0]);                                                                              \
        for (; i < n; i++) {                                                                                       \
            float v = TAIL(x, i);                                                                                  \
            uint32_t u;                                                                                            \
            memcpy(&u, &v, sizeof u);                                                                              \
            u &= 0x7fffffff;                                                                                       \
            if (u > most) most = u;                                                                                \
            if (u - 1 < least) least = u - 1;                                                                      \
            out[0] += v;                                                                                           \
        }                                                                                                          \
        if (most >= 0x7f800000) return COUNT_WIDE;                                                                 \
        if (most == 0) return out[0] = 0, 1;                                                                       \
        int top = (int)(most >> 23), bottom = (int)((least + 1) >> 23);                                            \
        if ((top ? top : 1) + 11 + PRECISION - 1 - (bottom ? bottom : 1) < 53) return 1;                           \
        double wider[BLOCK];                                                                                       \
        NAME(doubles_##KIND)(x, n, wider);                                                                         \
        return NAME(block_float64)(wider, n, out);                                                                 \
    }

NARROW_BLOCK(float32, float32_at, 24)
NARROW_BLOCK(bfloat16, bfloat16_at, 8)

TARGET static void NAME(doubles_float16)(const void *x, int n, double *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) *(VD *)(out + i) = NAME(widen)(NAME(load_float16)(x, i));
    for (; i < n; i++) out[i] = float16_at(x, i);
}

/* A finite float16 is a multiple of 2^-24 below 2^16: no scan is needed, and a NaN or infinity shows in the sum. */
TARGET static int NAME(block_float16)(const void *x, int n, double *out) {
    VD sum[4] = {{0}};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) sum[j] += NAME(widen)(NAME(load_float16)(x, i + j * LANES));
    for (int j = 1; j < 4; j++) sum[0] += sum[j];
    out[0] = NAME(total)(sum[0]);
    for (; i < n; i++) out[0] += float16_at(x, i);
    return out[0] - out[0] == 0 ? 1 : COUNT_WIDE;
}

TARGET static void NAME(doubles_float64)(const void *x, int n, double *out) { memcpy(out, x, sizeof(double) * n); }

/* Products of doubles as two doubles each (Dekker 1971, Veltkamp's splitting), exact for the exponents the caller
 * has checked. No fma: the same instructions on every machine. */
TARGET static void NAME(two_products)(const double *a, const double *b, int n, double *high, double *low) {
    const double splitter = 134217729.0; /* 2^27 + 1 */
    for (int i = 0; i < n; i += LANES) {
        VD x = *(const VD *)(a + i), y = *(const VD *)(b + i);
        VD s = x * splitter, t = y * splitter;
        VD xh = s - (s - x), yh = t - (t - y), xl = x - xh, yl = y - yh;
        VD p = x * y;
        *(VD *)(high + i) = p;
        *(VD *)(low + i) = ((xh * yh - p) + xh * yl + xl * yh) + xl * yl;
    }
}

TARGET static void NAME(products)(const double *a, const double *b, int n, double *out) {
    for (int i = 0; i < n; i += LANES) *(VD *)(out + i) = *(const VD *)(a + i) * *(const VD *)(b + i);
}

static const block_kernels NAME(kernels) = {
    {NAME(block_float64), NAME(block_float32), NAME(block_float16), NAME(block_bfloat16)},
    {NAME(doubles_float64), NAME(doubles_float32), NAME(doubles_float16), NAME(doubles_bfloat16)},
    NAME(scan), NAME(two_products), NAME(products),
};

#undef NARROW_BLOCK
#undef VD
#undef VQ
#undef VS
#undef VU
#undef VH
#undef LANES
#undef INLINE
