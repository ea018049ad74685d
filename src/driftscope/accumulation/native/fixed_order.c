/* Products of matrices in one fixed order: out[i, j] = fma(a[i, K-1], b[K-1, j], ... fma(a[i, 0], b[0, j], +0)).
 *
 * The chain is the specification: any machine with a fused multiply-add gives these bits, on lanes or one by one. The
 * fma here is written out; everywhere else in this library the build forbids the compiler to make one.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arithmetic.h"
#include "products.h"

/* Lanes of two vectors of four, numbered as if one lay behind the other. */
#if defined(__clang__) || __GNUC__ >= 12
#define MIXED(x, y, i, j, k, l) __builtin_shufflevector(x, y, i, j, k, l)
#else
#define LANE(x, y, i) ((i) < 4 ? (x)[(i) & 3] : (y)[(i) & 3])
#define MIXED(x, y, i, j, k, l) ((FOUR){LANE(x, y, i), LANE(x, y, j), LANE(x, y, k), LANE(x, y, l)})
#endif

enum { DEPTH = 256, WIDTH = 256, SPARE = 64, LINES = 96 }; /* LINES: of `a`, a multiple of every ROWS */

#if ON_X86
#define TARGET __attribute__((target("avx512f")))
#define ROWS 12
#define NAME(x) fused_##x##_float32_avx512
#define REAL float
#define VECTOR __m512
#define LANES 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SPREAD(x) _mm512_set1_ps(x)
#define FMA _mm512_fmadd_ps
#define SCALAR_FMA(x, y, z) __builtin_fmaf(x, y, z)
#include "tile.h"
#define NAME(x) fused_##x##_float64_avx512
#define REAL double
#define VECTOR __m512d
#define LANES 8
#define LOAD _mm512_loadu_pd
#define STORE _mm512_storeu_pd
#define SPREAD(x) _mm512_set1_pd(x)
#define FMA _mm512_fmadd_pd
#define SCALAR_FMA(x, y, z) __builtin_fma(x, y, z)
#include "tile.h"
#undef TARGET
#undef ROWS

#define TARGET __attribute__((target("avx2,fma")))
#define ROWS 6
#define NAME(x) fused_##x##_float32_avx2
#define REAL float
#define VECTOR __m256
#define LANES 8
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SPREAD(x) _mm256_set1_ps(x)
#define FMA _mm256_fmadd_ps
#define SCALAR_FMA(x, y, z) __builtin_fmaf(x, y, z)
#include "tile.h"
#define NAME(x) fused_##x##_float64_avx2
#define REAL double
#define VECTOR __m256d
#define LANES 4
#define LOAD _mm256_loadu_pd
#define STORE _mm256_storeu_pd
#define SPREAD(x) _mm256_set1_pd(x)
#define FMA _mm256_fmadd_pd
#define SCALAR_FMA(x, y, z) __builtin_fma(x, y, z)
#include "tile.h"
#undef TARGET
#undef ROWS
#endif

/* One lane; fma is the C library's, which is right on every machine and slow on some. */
#define TARGET
#define ROWS 4
#define NAME(x) fused_##x##_float32_plain
#define REAL float
#define VECTOR float
#define LANES 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPREAD(x) ((float)(x))
#define FMA(x, y, z) fmaf(x, y, z)
#define SCALAR_FMA(x, y, z) fmaf(x, y, z)
#include "tile.h"
#define NAME(x) fused_##x##_float64_plain
#define REAL double
#define VECTOR double
#define LANES 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPREAD(x) ((double)(x))
#define FMA(x, y, z) fma(x, y, z)
#define SCALAR_FMA(x, y, z) fma(x, y, z)
#include "tile.h"

int fused_multiply(int kind, const product *p) {
    int64_t width = p->columns < WIDTH ? p->columns : WIDTH, deep = p->depth < DEPTH ? p->depth : DEPTH;
    void *packed = malloc((size_t)((width + SPARE) * deep + 1) * (kind ? sizeof(float) : sizeof(double)));
    if (!packed) return 1;
    int level = driftscope_level();
#if ON_X86
    if (level == AVX512 && kind) fused_multiply_float32_avx512(p, packed);
    if (level == AVX512 && !kind) fused_multiply_float64_avx512(p, packed);
    if (level == AVX2 && kind) fused_multiply_float32_avx2(p, packed);
    if (level == AVX2 && !kind) fused_multiply_float64_avx2(p, packed);
#endif
    if (level == PLAIN && kind) fused_multiply_float32_plain(p, packed);
    if (level == PLAIN && !kind) fused_multiply_float64_plain(p, packed);
    free(packed);
    return 0;
}

/* `batch` products, each operand `a_batch` and `b_batch` elements after the one before; every c is contiguous. */
EXPORT int driftscope_products(int kind, const void *a, const void *b, const void *bias, void *c, int64_t batch,
                               int64_t rows, int64_t depth, int64_t columns, int64_t a_batch, int64_t a_row,
                               int64_t b_batch, int64_t b_row, int64_t b_column) {
    int64_t size = kind ? (int64_t)sizeof(float) : (int64_t)sizeof(double);
    arithmetic before = set_arithmetic();
    int failed = 0;
    for (int64_t i = 0; i < batch && !failed; i++) {
        product p = {(const char *)a + i * a_batch * size, (const char *)b + i * b_batch * size, bias,
                     (char *)c + i * rows * columns * size, rows, depth, columns, a_row, b_row, b_column};
        failed = fused_multiply(kind, &p);
    }
    restore_arithmetic(before);
    return failed;
}

/* kind: 0 for double, 1 for float. Returns 0, or 1 when there is no memory to work in. */
EXPORT int driftscope_matmul(int kind, const void *a, const void *b, void *c, int64_t rows, int64_t depth,
                             int64_t columns, int64_t a_row, int64_t b_row, int64_t b_column) {
    return driftscope_products(kind, a, b, NULL, c, 1, rows, depth, columns, 0, a_row, 0, b_row, b_column);
}
