/* Exact sums of a block in one pass, under a window of exponents that is guessed from its first elements.
 *
 * With C = 1.5 * 2^(g + bits of the significand - 1), t = v + C is C plus a multiple k of 2^g, and the bits of t are
 * those of C plus k: integers, which add exactly in any order. v - (t - C) is exact and at most 2^(g-1). The exponents
 * are looked at on the way, as integers; a block outside of the window is left to the two passes of the caller.
 * A zero wraps round to the largest number and is passed over.
 */

/* Doubles: |v| < 2^(g+42), multiples of 2^(g-43): 2^11 of either part stay below 2^53 of its last bit. */
TARGET static APART int NAME(window_float64)(const double *x, int n, double *out) {
    if (n < 4 * LANES) return COUNT_WIDE;
    VU most = {0}, least = ~(VU){0};
    UNROLL
    for (int j = 0; j < 4; j++) {
        VQ u = *(const VQ *)(x + j * LANES);
        most = MAX32(most, (VU)(u + u));
    }
    uint32_t m = 0, l = ~0u;
    UNROLL
    for (int j = 1; j < 2 * LANES; j += 2) m = most[j] > m ? most[j] : m;
    int g = (int)(m >> 21) - 1022 + 4 - 42;
    if (m == 0 || g < -950 || g > 900) return COUNT_WIDE;
    double c = POWER(g + 52) * 1.5;
    VD magic = (VD){} + c, low[4] = {{0}}, one = NAME(one64)();
    VQ high[4] = {{0}};
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        UNROLL
        for (int j = 0; j < 4; j++) {
            VD v = *(const VD *)(x + i + j * LANES), t = FUSED64(v, one, magic);
            VQ u = (VQ)v + (VQ)v;
            AHEAD(x + i + j * LANES);
            high[j] += (VQ)t;
            low[j] = FUSED64(v - (t - magic), one, low[j]);
            most = MAX32(most, (VU)u);
            least = MIN32(least, (VU)(u - 1)); /* the upper halves are read: a power of two looks one binade lower */
        }
    UNROLL
    for (int j = 1; j < 4; j++) high[0] += high[j], low[0] += low[j];
    uint64_t k = 0 - (uint64_t)i * bits_of(c);
    UNROLL
    for (int j = 0; j < LANES; j++) {
        k += high[0][j];
        m = most[2 * j + 1] > m ? most[2 * j + 1] : m;
        l = least[2 * j + 1] < l ? least[2 * j + 1] : l;
    }
    double upper = (double)(int64_t)k * POWER(g), lower = NAME(total)(low[0]);
    for (; i < n; i++) {
        double h = (x[i] + c) - c;
        uint64_t u = bits_of(x[i]) << 1;
        upper += h;
        lower += x[i] - h;
        m = (uint32_t)(u >> 32) > m ? (uint32_t)(u >> 32) : m;
        l = (uint32_t)((u - 1) >> 32) < l ? (uint32_t)((u - 1) >> 32) : l;
    }
    int top = (int)(m >> 21), bottom = (int)(l >> 21);
    if (top - 1022 > g + 42 || (bottom ? bottom : 1) - 1075 < g - 43) return COUNT_WIDE;
    return NAME(two_parts)(upper, lower, out);
}

/* The i-th vector of floats: of float16, widened; of bfloat16, sums of two. Floats themselves gain nothing: widened to
 * doubles they take as many instructions. */
INLINE VF NAME(floats)(int kind, const void *x, int i) {
    if (kind == FLOAT16) return LOADS_FLOAT16((const uint16_t *)x + i * 2 * LANES);
    VU pair = *(const VU *)((const uint16_t *)x + i * 4 * LANES);
    return (VF)(pair << 16) + (VF)(pair & 0xffff0000);
}

typedef struct {
    VH most, least;
} NAME(range);

/* `count` vectors, a multiple of 4. Floats: |v| < 2^(g+22), multiples of 2^(g-21); sixteen of the lower parts stay
 * below 2^24 of the last bit, and are then taken on as doubles. `seen` receives the range of the bits of bfloat16, sign
 * dropped. */
INLINE double NAME(window)(int kind, const void *x, int count, int g, NAME(range) *seen) {
    float c = (float)(POWER(g + 23) * 1.5);
    VF magic = (VF){} + c;
    VU high[4] = {{0}};
    VH strip = (VH){} + 0x7fff, most = {0}, least = strip;
    VD rest = {0};
    VF one = NAME(one32)();
    for (int start = 0; start < count; start += 64) {
        VF low[4] = {{0}};
        for (int i = start; i < count && i < start + 64; i += 4)
            UNROLL
            for (int j = 0; j < 4; j++) {
                VF v = NAME(floats)(kind, x, i + j), t = FUSED32(v, one, magic);
                AHEAD((const char *)x + (i + j) * (kind == FLOAT16 ? WIDTH / 2 : WIDTH));
                high[j] += (VU)t;
                low[j] = FUSED32(v - (t - magic), one, low[j]);
                if (kind == BFLOAT16) {
                    VH u = *(const VH *)((const uint16_t *)x + (i + j) * 4 * LANES) & strip;
                    most = MAX16(most, u);
                    least = MIN16(least, (u - 1) & strip);
                }
            }
        UNROLL
        for (int j = 0; j < 4; j++) {
            union { VF whole; HALF half[2]; } both = {low[j]};
            rest += WIDEN(both.half[0]);
            rest += WIDEN(both.half[1]);
        }
    }
    uint32_t bits;
    memcpy(&bits, &c, sizeof bits);
    int64_t k = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        VU steps = high[j] - (uint32_t)(count / 4) * bits; /* at most 128 of 2^22 in each lane */
        for (int lane = 0; lane < 2 * LANES; lane++) k += (int32_t)steps[lane];
    }
    seen->most = most;
    seen->least = least;
    return (double)k * POWER(g) + NAME(total)(rest);
}

/* bfloat16 has 8 significant bits: within 16 binades the sum of two is a float. */
TARGET static APART int NAME(window_bfloat16)(const void *data, int n, double *out) {
    const uint16_t *x = data;
    int count = n / (4 * LANES) & ~3, most = 0, least = 0x7fff;
    if (count == 0) return COUNT_WIDE;
    for (int j = 0; j < 4 * LANES; j++) most = (x[j] & 0x7fff) > most ? x[j] & 0x7fff : most;
    int g = (most >> 7) - 126 + 5 - 22;
    if (most == 0 || g > 100 || g < -149) return COUNT_WIDE;
    NAME(range) seen;
    double sum = NAME(window)(BFLOAT16, x, count, g, &seen);
    UNROLL
    for (int j = 0; j < 4 * LANES; j++) {
        most = seen.most[j] > most ? seen.most[j] : most;
        least = seen.least[j] < least ? seen.least[j] : least;
    }
    for (int i = count * 4 * LANES; i < n; i++) {
        int u = x[i] & 0x7fff, v = (u - 1) & 0x7fff;
        most = u > most ? u : most;
        least = v < least ? v : least;
        sum += bfloat16_at(x, i);
    }
    int top = most >> 7, bottom = (least + 1) >> 7 ? (least + 1) >> 7 : 1;
    if (top - 125 > g + 22 || bottom - 134 < g - 21 || top - bottom > 15) return COUNT_WIDE;
    out[0] = sum;
    return 1;
}

/* A finite float16 is a multiple of 2^-24 below 2^16: one window holds them all, and a NaN or infinity shows in the
 * sum. */
TARGET static int NAME(block_float16)(const void *x, int n, double *out) {
    int count = n / (2 * LANES) & ~3;
    NAME(range) seen;
    out[0] = NAME(window)(FLOAT16, x, count, -6, &seen);
    for (int i = count * 2 * LANES; i < n; i++) out[0] += float16_at(x, i);
    return out[0] - out[0] == 0 ? 1 : COUNT_WIDE;
}
