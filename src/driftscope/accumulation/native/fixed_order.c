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

enum { DEPTH = 256, WIDTH = 256, SPARE = 64 };

typedef struct {
    const void *a, *b;
    void *c;
    int64_t rows, depth, columns;
    int64_t a_row;           /* elements between rows of a; its columns are adjacent */
    int64_t b_row, b_column; /* elements between rows and between columns of b */
} product;

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

/* kind: 0 for double, 1 for float. Returns 0, or 1 when there is no memory to work in. */
EXPORT int driftscope_matmul(int kind, const void *a, const void *b, void *c, int64_t rows, int64_t depth,
                             int64_t columns, int64_t a_row, int64_t b_row, int64_t b_column) {
    const product p = {a, b, c, rows, depth, columns, a_row, b_row, b_column};
    if (depth == 0) {
        memset(c, 0, (size_t)(rows * columns) * (kind ? sizeof(float) : sizeof(double)));
        return 0;
    }
    int64_t width = columns < WIDTH ? columns : WIDTH, deep = depth < DEPTH ? depth : DEPTH;
    void *packed = malloc((size_t)((width + SPARE) * deep) * (kind ? sizeof(float) : sizeof(double)));
    if (!packed) return 1;
    arithmetic before = set_arithmetic();
    int level = driftscope_level();
#if ON_X86
    if (level == AVX512 && kind) fused_multiply_float32_avx512(&p, packed);
    if (level == AVX512 && !kind) fused_multiply_float64_avx512(&p, packed);
    if (level == AVX2 && kind) fused_multiply_float32_avx2(&p, packed);
    if (level == AVX2 && !kind) fused_multiply_float64_avx2(&p, packed);
#endif
    if (level == PLAIN && kind) fused_multiply_float32_plain(&p, packed);
    if (level == PLAIN && !kind) fused_multiply_float64_plain(&p, packed);
    restore_arithmetic(before);
    free(packed);
    return 0;
}
