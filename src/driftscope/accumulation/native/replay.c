/* Adding rows in the order of a summation tree, with or without fused multiply-add.
 *
 * Lanes lie across rows, so that every row is added exactly as one would be alone.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "arithmetic.h"

enum { ABREAST = 16 };
enum { PLAINLY = 0, OF_UNROUNDED = 1, INTO_UNROUNDED = 2 };

typedef struct {
    int64_t n;
    int32_t last;    /* slot of the whole sum */
    int32_t *into;   /* per addition: the slot that grows */
    int32_t *of;     /* and what is added to it; a single term where one of the two is one */
    int8_t *way;
} order;

#if ON_X86
#define TARGET __attribute__((target("avx512f")))
#define NAME(x) fused_##x##_rows_float32_avx512
#define REAL float
#define VECTOR __m512
#define LANES 16
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SPREAD(x) _mm512_set1_ps(x)
#define ADD _mm512_add_ps
#define MULTIPLY _mm512_mul_ps
#define FMA _mm512_fmadd_ps
#include "adds.h"
#define NAME(x) fused_##x##_rows_float64_avx512
#define REAL double
#define VECTOR __m512d
#define LANES 8
#define LOAD _mm512_loadu_pd
#define STORE _mm512_storeu_pd
#define SPREAD(x) _mm512_set1_pd(x)
#define ADD _mm512_add_pd
#define MULTIPLY _mm512_mul_pd
#define FMA _mm512_fmadd_pd
#include "adds.h"
#undef TARGET

#define TARGET __attribute__((target("avx2,fma")))
#define NAME(x) fused_##x##_rows_float32_avx2
#define REAL float
#define VECTOR __m256
#define LANES 8
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SPREAD(x) _mm256_set1_ps(x)
#define ADD _mm256_add_ps
#define MULTIPLY _mm256_mul_ps
#define FMA _mm256_fmadd_ps
#include "adds.h"
#define NAME(x) fused_##x##_rows_float64_avx2
#define REAL double
#define VECTOR __m256d
#define LANES 4
#define LOAD _mm256_loadu_pd
#define STORE _mm256_storeu_pd
#define SPREAD(x) _mm256_set1_pd(x)
#define ADD _mm256_add_pd
#define MULTIPLY _mm256_mul_pd
#define FMA _mm256_fmadd_pd
#include "adds.h"
#undef TARGET
#endif

#define TARGET
#define NAME(x) fused_##x##_rows_float32_plain
#define REAL float
#define VECTOR float
#define LANES 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPREAD(x) ((float)(x))
#define ADD(x, y) ((x) + (y))
#define MULTIPLY(x, y) ((x) * (y))
#define FMA(x, y, z) fmaf(x, y, z)
#include "adds.h"
#define NAME(x) fused_##x##_rows_float64_plain
#define REAL double
#define VECTOR double
#define LANES 1
#define LOAD(p) (*(p))
#define STORE(p, v) (*(p) = (v))
#define SPREAD(x) ((double)(x))
#define ADD(x, y) ((x) + (y))
#define MULTIPLY(x, y) ((x) * (y))
#define FMA(x, y, z) fma(x, y, z)
#include "adds.h"

/* Slots: a term's own, then that of the left operand; single terms go to the right. `unrounded`: null for none. */
static void write_order(order *o, const int64_t *left, const int64_t *right, const int8_t *unrounded, int32_t *slot) {
    int64_t n = o->n;
    for (int64_t k = 0; k < n; k++) slot[k] = (int32_t)k;
    for (int64_t k = 0; k < n - 1; k++) {
        int64_t a = left[k], b = right[k];
        if ((a < n && b >= n) || (a < n && b < n && a > b)) {
            a = right[k];
            b = left[k];
        }
        o->into[k] = slot[a];
        o->of[k] = slot[b];
        slot[n + k] = slot[a];
        o->way[k] = PLAINLY;
        if (unrounded && b < n) {
            if (unrounded[b])
                o->way[k] = OF_UNROUNDED;
            else if (a < n && unrounded[a])
                o->way[k] = INTO_UNROUNDED;
        }
    }
    o->last = n > 1 ? slot[2 * n - 2] : 0;
}

static void add_block(int kind, const order *o, const void *x, int64_t rows, const void *w, void *t, void *s, void *y) {
    int level = driftscope_level();
#if ON_X86
    if (level == AVX512 && kind) fused_add_rows_float32_avx512(o, x, rows, w, t, s, y);
    if (level == AVX512 && !kind) fused_add_rows_float64_avx512(o, x, rows, w, t, s, y);
    if (level == AVX2 && kind) fused_add_rows_float32_avx2(o, x, rows, w, t, s, y);
    if (level == AVX2 && !kind) fused_add_rows_float64_avx2(o, x, rows, w, t, s, y);
#endif
    if (level == PLAIN && kind) fused_add_rows_float32_plain(o, x, rows, w, t, s, y);
    if (level == PLAIN && !kind) fused_add_rows_float64_plain(o, x, rows, w, t, s, y);
}

/* kind: 0 for double, 1 for float. x is (rows, n), weights (n) or null, unrounded one flag per term or null, out (rows).
 * Returns 0, or 1 when there is no memory to work in. */
EXPORT int driftscope_replay(int kind, int64_t n, const int64_t *left, const int64_t *right, const int8_t *unrounded,
                             const void *x, int64_t rows, const void *weights, void *out) {
    size_t real = kind ? sizeof(float) : sizeof(double), many = (size_t)n;
    order o = {n, 0, malloc(many * sizeof(int32_t)), malloc(many * sizeof(int32_t)), malloc(many)};
    int32_t *slot = malloc(2 * many * sizeof(int32_t));
    char *terms = malloc(many * ABREAST * real), *sums = weights ? malloc(many * ABREAST * real) : terms;
    int failed = !(o.into && o.of && o.way && slot && terms && sums);
    if (!failed) {
        arithmetic before = set_arithmetic();
        write_order(&o, left, right, unrounded, slot);
        for (int64_t at = 0; at < rows; at += ABREAST) {
            int64_t here = rows - at < ABREAST ? rows - at : ABREAST;
            add_block(kind, &o, (const char *)x + (size_t)(at * n) * real, here, weights, terms, sums,
                      (char *)out + (size_t)at * real);
        }
        restore_arithmetic(before);
    }
    if (weights) free(sums);
    free(terms);
    free(slot);
    free(o.way);
    free(o.of);
    free(o.into);
    return failed;
}
