/* Layers on rows of floats in one fixed order: softmax, layer normalisation, functions of single elements, attention.
 *
 * Each is a fixed list of operations for every output (elementary.h); driftscope.accumulation.exact.fixed has the same
 * lists in torch, and the tests hold one against the other.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arithmetic.h"
#include "products.h"

enum { BLOCK = 2048, QUIET_NAN = 0x7fc00000, SHIFT_BITS = 0x4b400000 };
enum { SIGMOID, TANH, SILU, GELU, GELU_OF_TANH };

#define LOWEST -104.0f /* its exponential rounds to zero */
#define SHIFT 0x1.8p23f
#define LOG2_E 0x1.715476p+0f
#define LN2_HIGH 0x1.62e430p-1f
#define LN2_LOW -0x1.05c610p-29f
#define TANH_NEAR 0.55f
#define FARTHEST 14.5f
#define TWICE_ROOT 0x1.988454p+0f /* 2 sqrt(2 / pi) */

/* Polynomials of least largest relative error, highest power first, fitted in float64 and rounded. */
static const float POWERS[7] = {0x1.6a1a8ap-10f, 0x1.123fb6p-7f, 0x1.555916p-5f, 0x1.55548ap-3f, 0x1.fffffcp-2f, 1, 1};
static const float NEAR_ZERO[5] = {-0x1.8c4ea8p-8f, 0x1.56a096p-6f, -0x1.b8d880p-5f, 0x1.110b4ap-3f, -0x1.555544p-2f};
/* exp(a^2 / 2) times the share of a normal distribution beyond a, of u = (a - 3) / (a + 3), for a in [0, 14]. */
static const float TAIL[10] = {0x1.c23b6ep-15f, 0x1.e4a018p-14f, -0x1.63f9cap-12f, -0x1.01e2e8p-10f, 0x1.7cb4bcp-9f,
                               0x1.91df12p-8f,  -0x1.7a944cp-5f, 0x1.f8bad0p-4f,   -0x1.a6b66ap-3f,  0x1.f1b89cp-4f};

/* GCC splits a conversion between vectors of two sizes in halves unless it is named. */
#if ON_X86
#define NAME(x) fused_##x##_avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
#define WIDTH 64
#define FMA(x, y, z) (VF) _mm512_fmadd_ps((__m512)(x), (__m512)(y), (__m512)(z))
#define WIDE(p) (VD) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define NARROW(y) (HALF) _mm512_cvtpd_ps((__m512d)(y))
#include "elementary.h"

#define NAME(x) fused_##x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define WIDTH 32
#define FMA(x, y, z) (VF) _mm256_fmadd_ps((__m256)(x), (__m256)(y), (__m256)(z))
#define WIDE(p) (VD) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define NARROW(y) (HALF) _mm256_cvtpd_ps((__m256d)(y))
#include "elementary.h"
#endif

#define NAME(x) fused_##x##_plain
#define TARGET
#define WIDTH 16
#define FMA(x, y, z) fused_of_four(x, y, z)
#define WIDE(p) __builtin_convertvector(*(const HALF *)(p), VD)
#define NARROW(y) __builtin_convertvector(y, HALF)
typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
static inline four fused_of_four(four x, four y, four z) {
    return (four){fmaf(x[0], y[0], z[0]), fmaf(x[1], y[1], z[1]), fmaf(x[2], y[2], z[2]), fmaf(x[3], y[3], z[3])};
}
#include "elementary.h"

#if ON_X86
#define BEST(function)                                                                                                \
    (driftscope_level() == AVX512 ? fused_##function##_avx512                                                         \
     : driftscope_level() == AVX2 ? fused_##function##_avx2                                                           \
                                  : fused_##function##_plain)
#else
#define BEST(function) fused_##function##_plain
#endif

/* function: 0 sigmoid, 1 tanh, 2 silu, 3 gelu, 4 gelu in its form with tanh. */
EXPORT void driftscope_elements(int function, const float *x, int64_t n, float *out) {
    arithmetic before = set_arithmetic();
    BEST(elements)(function, x, n, out);
    restore_arithmetic(before);
}

/* Each of `rows` contiguous rows of n floats; a row of nothing but -inf is NaN, or 0 if `masked_is_zero`. */
EXPORT void driftscope_softmax(const float *x, int64_t rows, int64_t n, int masked_is_zero, float *out) {
    arithmetic before = set_arithmetic();
    float statistics[2];
    for (int64_t i = 0; i < rows; i++) BEST(softmax_row)(x + i * n, n, masked_is_zero, out + i * n, statistics);
    restore_arithmetic(before);
}

/* ((x - mean) / sqrt(variance + eps)) * weight + bias in double, rounded once; also the mean and the scale of each row. */
EXPORT void driftscope_norm_rows(const float *x, int64_t rows, int64_t n, const float *weight, const float *bias,
                                double eps, float *out, float *mean, float *scale) {
    arithmetic before = set_arithmetic();
    for (int64_t i = 0; i < rows; i++)
        BEST(norm_row)(x + i * n, n, weight, bias, eps, out + i * n, mean + i, scale + i);
    restore_arithmetic(before);
}

/* softmax(q k^T + mask) v of floats, query rows in blocks that stay in cache; a row that is masked whole is 0.
 * q (queries, depth), k (keys, depth), v (keys, width), all contiguous; mask (queries, keys) with its own strides, or null;
 * statistics (queries, 2): the largest score and the sum of exponentials of each row.
 * Returns 0, or 1 when there is no memory to work in. */
EXPORT int driftscope_attention(const float *q, const float *k, const float *v, const float *mask, int64_t mask_row,
                                int64_t mask_column, int64_t queries, int64_t keys, int64_t depth, int64_t width,
                                float *out, float *statistics) {
    enum { ROWS = 96 };
    float *scores = malloc(sizeof(float) * (size_t)(keys * ROWS));
    if (!scores) return 1;
    arithmetic before = set_arithmetic();
    int failed = 0;
    for (int64_t start = 0; start < queries && !failed; start += ROWS) {
        int64_t rows = queries - start < ROWS ? queries - start : ROWS;
        product first = {q + start * depth, k, NULL, scores, rows, depth, keys, depth, 1, depth};
        failed = fused_multiply(1, &first);
        for (int64_t i = 0; i < rows && !failed; i++) {
            float *row = scores + i * keys;
            const float *added = mask ? mask + (start + i) * mask_row : NULL;
            for (int64_t j = 0; added && j < keys; j++) row[j] += added[j * mask_column];
            BEST(softmax_row)(row, keys, 1, row, statistics + 2 * (start + i));
        }
        product second = {scores, v, NULL, out + start * width, rows, keys, width, keys, width, 1};
        failed = failed || fused_multiply(1, &second);
    }
    restore_arithmetic(before);
    free(scores);
    return failed;
}
