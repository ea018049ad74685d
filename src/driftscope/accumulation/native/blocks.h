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
typedef float NAME(vf) __attribute__((vector_size(WIDTH), aligned(4), may_alias));
typedef uint32_t NAME(vu) __attribute__((vector_size(WIDTH), aligned(2), may_alias));
typedef uint16_t NAME(vh) __attribute__((vector_size(WIDTH), aligned(2), may_alias));
typedef float NAME(half) __attribute__((vector_size(WIDTH / 2), aligned(4), may_alias));

#define VD NAME(vd)
#define VQ NAME(vq)
#define VF NAME(vf)
#define VU NAME(vu)
#define VH NAME(vh)
#define HALF NAME(half)
enum { NAME(LANES) = WIDTH / 8 };
#define LANES NAME(LANES)
/* A block is read twice, and nothing is fetched meanwhile unless it is asked for. */
#define AHEAD(x) __builtin_prefetch((const char *)(x) + 4096)
#define INLINE TARGET static inline __attribute__((always_inline))
/* Its name stays in the library, where a test looks for fused operations that nobody wrote. */
#define APART __attribute__((noinline))
/* At -O2 a loop over registers stays a loop over memory unless it is asked to unroll. */
#define UNROLL _Pragma("GCC unroll 8")

/* Ones that no compiler sees through. */
INLINE VD NAME(one64)(void) {
    VD one = (VD){} + 1.0;
    __asm__("" : "+m"(one));
    return one;
}
INLINE VF NAME(one32)(void) {
    VF one = (VF){} + 1.0f;
    __asm__("" : "+m"(one));
    return one;
}

/* One vector's sum, largest and smallest lane, by halves: every one is exact, so any order will do. */
INLINE double NAME(total)(VD a) {
    union { VD whole; double lane[LANES]; } u = {a};
    UNROLL
    for (int step = LANES / 2; step; step /= 2)
        UNROLL
        for (int i = 0; i < step; i++) u.lane[i] += u.lane[i + step];
    return u.lane[0];
}

/* One double where it holds the sum of two, else both. */
INLINE int NAME(two_parts)(double upper, double lower, double *out) {
    double sum = upper + lower, part = sum - upper;
    out[0] = upper;
    out[1] = lower;
    if ((upper - (sum - part)) + (lower - part) != 0) return 2;
    out[0] = sum;
    return 1;
}

#ifdef LOOP_OVER_LANES
#define EXTREME(function, scalar, type, count, sign)                                                               \
    INLINE scalar NAME(function)(type a) {                                                                         \
        scalar found = a[0];                                                                                       \
        UNROLL                                                                                                     \
        for (int i = 1; i < count; i++) found = a[i] sign found ? a[i] : found;                                    \
        return found;                                                                                              \
    }
EXTREME(largest64, double, VD, LANES, >)
EXTREME(smallest64, double, VD, LANES, <)
#undef EXTREME
#endif

/* Largest |bits|, and smallest |bits| - 1 where zero wraps round to the largest number. NaN counts as the largest. */
TARGET static void NAME(scan)(const double *x, int n, uint64_t *most, uint64_t *least) {
    VQ strip = (VQ){} + 0x7fffffffffffffff, high = {0}, low = strip;
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        VQ u = *(const VQ *)(x + i) & strip;
        high = MAX64(high, u);
        low = MIN64(low, (u - 1) & strip);
    }
    uint64_t m = 0, l = ~0ull;
    for (int j = 0; j < LANES; j++) {
        if (high[j] > m) m = high[j];
        if (low[j] < l) l = low[j];
    }
    for (; i < n; i++) {
        uint64_t u = bits_of(x[i]) & 0x7fffffffffffffff, v = (u - 1) & 0x7fffffffffffffff;
        if (u > m) m = u;
        if (v < l) l = v;
    }
    *most = m;
    *least = l;
}

/* The same in fewer instructions, for data that is mostly ordinary: NaN is passed over (it shows in any sum), and a
 * zero sends the caller to the careful scan. */
TARGET static void NAME(quick_scan)(const double *x, int n, uint64_t *most, uint64_t *least) {
    VD high[4] = {{0}}, low[4];
    UNROLL
    for (int j = 0; j < 4; j++) low[j] = (VD){} + INFINITY;
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        UNROLL
        for (int j = 0; j < 4; j++) {
            VD v = *(const VD *)(x + i + j * LANES);
            AHEAD(x + i + j * LANES);
            high[j] = LARGER64(v, high[j]);
            low[j] = SMALLER64(v, low[j]);
        }
    UNROLL
    for (int j = 1; j < 4; j++) high[0] = LARGER64(high[j], high[0]), low[0] = SMALLER64(low[j], low[0]);
    double m = LARGEST64(high[0]), l = SMALLEST64(low[0]);
    for (; i < n; i++) {
        double v = x[i] < 0 ? -x[i] : x[i];
        if (v > m) m = v;
        if (v < l) l = v;
    }
    *most = bits_of(m);
    *least = (bits_of(l) & 0x7fffffffffffffff) - 1;
    if (l == 0) NAME(scan)(x, n, most, least);
}

TARGET static double NAME(plain_sum)(const double *x, int n) {
    VD sum[8] = {{0}};
    int i = 0;
    for (; i + 8 * LANES <= n; i += 8 * LANES)
        UNROLL
        for (int j = 0; j < 8; j++) sum[j] += *(const VD *)(x + i + j * LANES);
    double rest = 0;
    for (; i < n; i++) rest += x[i];
    UNROLL
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    return rest + NAME(total)(sum[0]);
}

TARGET static void NAME(two_slices)(const double *x, int n, double c, double *out) {
    VD high[4] = {{0}}, low[4] = {{0}}, magic = (VD){} + c;
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        UNROLL
        for (int j = 0; j < 4; j++) {
            VD v = *(const VD *)(x + i + j * LANES), h = (v + magic) - magic;
            high[j] += h;
            low[j] += v - h;
        }
    UNROLL
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

#include "windows.h"
#include "unrounded.h"

TARGET static int NAME(slices)(const double *x, int n, uint64_t most, uint64_t least, double *out) {
    if (most >= 0x7ff0000000000000) return COUNT_WIDE;
    int top = (int)(most >> 52), bottom = (int)((least + 1) >> 52);
    int E = (top ? top : 1) - 1022, lsb = (bottom ? bottom : 1) - 1075;
    if (E > 960) return COUNT_WIDE;
    if (most == 0 || E + 11 - lsb <= 53) {
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

TARGET static int NAME(block_float64)(const void *data, int n, double *out) {
    uint64_t most, least;
    int found = NAME(window_float64)(data, n, out);
    if (found != COUNT_WIDE) return found;
    NAME(quick_scan)(data, n, &most, &least);
    int count = NAME(slices)(data, n, most, least, out);
    return count != COUNT_WIDE && out[0] - out[0] == 0 ? count : COUNT_WIDE; /* a NaN is in every slice */
}

TARGET static void NAME(doubles_float64)(const void *x, int n, double *out) { memcpy(out, x, sizeof(double) * n); }

TARGET static void NAME(doubles_float32)(const void *x, int n, double *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) *(VD *)(out + i) = WIDEN(*(const HALF *)((const float *)x + i));
    for (; i < n; i++) out[i] = float32_at(x, i);
}

TARGET static void NAME(doubles_float16)(const void *x, int n, double *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) *(VD *)(out + i) = WIDEN(LOAD_FLOAT16((const uint16_t *)x + i));
    for (; i < n; i++) out[i] = float16_at(x, i);
}

TARGET static void NAME(doubles_bfloat16)(const void *x, int n, double *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) *(VD *)(out + i) = WIDEN(LOAD_BFLOAT16((const uint16_t *)x + i));
    for (; i < n; i++) out[i] = bfloat16_at(x, i);
}

TARGET static int NAME(block_float32)(const void *x, int n, double *out) {
    double wider[BLOCK];
    NAME(doubles_float32)(x, n, wider);
    return NAME(block_float64)(wider, n, out);
}

/* bfloat16 values are floats with 8 significant bits: when they lie within 16 binades, two of them add exactly in
 * float32, and half the conversions are saved. The scan is on 16-bit integers. */
TARGET static int NAME(block_bfloat16)(const void *data, int n, double *out) {
    const uint16_t *x = data;
    if (NAME(window_bfloat16)(data, n, out) == 1) return 1;
    VH strip = (VH){} + 0x7fff, high = {0}, low = strip;
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        VH u = *(const VH *)(x + i) & strip;
        AHEAD(x + i);
        high = MAX16(high, u);
        low = MIN16(low, (u - 1) & strip);
    }
    int most = 0, least = 0x7fff;
    UNROLL
    for (int j = 0; j < 4 * LANES; j++) {
        most = high[j] > most ? high[j] : most;
        least = low[j] < least ? low[j] : least;
    }
    for (; i < n; i++) {
        int u = x[i] & 0x7fff, v = (u - 1) & 0x7fff;
        if (u > most) most = u;
        if (v < least) least = v;
    }
    if (most >= 0x7f80) return COUNT_WIDE;
    out[0] = 0;
    if (most == 0) return 1;
    int top = most >> 7 ? most >> 7 : 1, bottom = (least + 1) >> 7 ? (least + 1) >> 7 : 1;
    if (top - bottom > 15 || top > 250) {
        double wider[BLOCK];
        NAME(doubles_bfloat16)(x, n, wider);
        return NAME(block_float64)(wider, n, out);
    }
    VD sum[2] = {{0}};
    for (i = 0; i + 4 * LANES <= n; i += 4 * LANES) {
        VU pair = *(const VU *)(x + i);
        union { VF whole; HALF half[2]; } both = {(VF)(pair << 16) + (VF)(pair & 0xffff0000)};
        sum[0] += WIDEN(both.half[0]);
        sum[1] += WIDEN(both.half[1]);
    }
    out[0] = NAME(total)(sum[0] + sum[1]);
    for (; i < n; i++) out[0] += bfloat16_at(x, i);
    return 1;
}

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

/* ((x - mean) * scale) * weight + bias, every operation rounded by itself; weight and bias may be missing. */
TARGET static void NAME(affine)(const double *x, int n, double mean, double scale, const double *weight,
                                const double *bias, double *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        VD y = (*(const VD *)(x + i) - mean) * scale;
        if (weight) y = y * *(const VD *)(weight + i);
        if (bias) y = y + *(const VD *)(bias + i);
        *(VD *)(out + i) = y;
    }
    for (; i < n; i++) {
        double y = (x[i] - mean) * scale;
        if (weight) y = y * weight[i];
        if (bias) y = y + bias[i];
        out[i] = y;
    }
}

TARGET static void NAME(narrow)(const double *x, int n, float *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES) *(HALF *)(out + i) = NARROW(*(const VD *)(x + i));
    for (; i < n; i++) out[i] = (float)x[i];
}

static const block_kernels NAME(kernels) = {
    {NAME(unrounded_float64), NAME(unrounded_float32), NULL, NAME(unrounded_bfloat16)}, /* float16 has a window of its own */
    {NAME(block_float64), NAME(block_float32), NAME(block_float16), NAME(block_bfloat16)},
    {NAME(doubles_float64), NAME(doubles_float32), NAME(doubles_float16), NAME(doubles_bfloat16)},
    NAME(scan), NAME(two_products), NAME(products), NAME(affine), NAME(narrow),
};

#undef VD
#undef VQ
#undef VF
#undef VU
#undef VH
#undef HALF
#undef AHEAD
#undef UNROLL
#undef LANES
#undef INLINE
#undef APART
