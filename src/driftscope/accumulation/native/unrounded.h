/* Exact sums of a block that add first and ask the processor afterwards whether anything was rounded.
 *
 * The processor remembers an inexact result until it is told to forget it. Where nothing was rounded since, every sum
 * below is exact, whatever the exponents are: no element has to be looked at. A NaN or an infinity shows in the sum.
 * Values of more bits than fit are taken apart first, by dropping the lower half of the significand's bits: both halves
 * then add exactly over half as many binades. What was rounded is left to the careful functions beside these.
 *
 * Some processors convert and add on two units and multiply on two others: a sum that is a product with one, fused with
 * the addition, has the same bits there and costs the first two nothing.
 */

/* Reads begin after what was rounded before is forgotten, and end before the processor is asked. */
#define FRESH(x)                                                                                                       \
    forget_rounding();                                                                                                 \
    __asm__ volatile("" : "+r"(x) : : "memory")
#define SETTLED(sum) __asm__ volatile("" : "+m"(sum) : : "memory")
/* A cache line has 64 bytes: one request for each. Nothing is read twice here, so it need not come early. */
#define AHEAD_OF_LINE(x, at) \
    if ((at) * WIDTH % 64 == 0) __builtin_prefetch((const char *)(x) + 384)

TARGET static int NAME(unrounded_float64)(const void *data, int n, double *out) {
    const double *x = data;
    FRESH(x);
    VQ strip = (VQ){} + 0xfffffffff8000000;
    VD high[4] = {{0}}, low[4] = {{0}}, one = NAME(one64)();
    int i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        UNROLL
        for (int j = 0; j < 4; j++) {
            VD v = *(const VD *)(x + i + j * LANES), h = (VD)((VQ)v & strip);
            AHEAD_OF_LINE(x + i + j * LANES, j);
            high[j] = FUSED64(h, one, high[j]);
            low[j] += v - h;
        }
    UNROLL
    for (int j = 1; j < 4; j++) high[0] += high[j], low[0] += low[j];
    double upper = NAME(total)(high[0]), lower = NAME(total)(low[0]);
    for (; i < n; i++) {
        double h = double_of(bits_of(x[i]) & 0xfffffffff8000000);
        upper += h;
        lower += x[i] - h;
    }
    SETTLED(upper);
    SETTLED(lower);
    if (rounded() || (upper - upper) + (lower - lower) != 0) return COUNT_WIDE;
    return NAME(two_parts)(upper, lower, out);
}

INLINE int NAME(unrounded)(double sum, double *out) {
    SETTLED(sum);
    out[0] = sum;
    return rounded() || sum - sum != 0 ? COUNT_WIDE : 1;
}

TARGET static int NAME(unrounded_float32)(const void *data, int n, double *out) {
    const float *x = data;
    FRESH(x);
    VD sum[8] = {{0}}, one = NAME(one64)();
    int i = 0;
    for (; i + 8 * LANES <= n; i += 8 * LANES)
        UNROLL
        for (int j = 0; j < 8; j++) {
            if (j % 2 == 0) AHEAD_OF_LINE(x + i + j * LANES, j / 2);
            sum[j] = FUSED64(WIDEN(*(const HALF *)(x + i + j * LANES)), one, sum[j]);
        }
    UNROLL
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    double all = NAME(total)(sum[0]);
    for (; i < n; i++) all += x[i];
    return NAME(unrounded)(all, out);
}

/* The 8 bits of a bfloat16 leave 16 to add eight of them in a float. */
TARGET static int NAME(unrounded_bfloat16)(const void *data, int n, double *out) {
    const uint16_t *x = data;
    FRESH(x);
    VD sum[4] = {{0}};
    VF one = NAME(one32)();
    int i = 0;
    while (i + 16 * LANES <= n) {
        VF part[4] = {{0}};
        for (int end = i + 64 * LANES; i < end && i + 16 * LANES <= n; i += 16 * LANES)
            UNROLL
            for (int j = 0; j < 4; j++) {
                VU pair = *(const VU *)(x + i + 4 * j * LANES);
                AHEAD_OF_LINE(x + i + 4 * j * LANES, j);
                part[j] = FUSED32((VF)(pair << 16), one, part[j]);
                part[j] += (VF)(pair & 0xffff0000);
            }
        UNROLL
        for (int j = 0; j < 4; j++) {
            union { VF whole; HALF half[2]; } both = {part[j]};
            sum[j] += WIDEN(both.half[0]) + WIDEN(both.half[1]);
        }
    }
    double all = NAME(total)((sum[0] + sum[1]) + (sum[2] + sum[3]));
    for (; i < n; i++) all += bfloat16_at(x, i);
    return NAME(unrounded)(all, out);
}

#undef FRESH
#undef SETTLED
#undef AHEAD_OF_LINE
