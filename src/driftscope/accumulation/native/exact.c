/* Exact sums, products and squares of rows, rounded once. Loaded with ctypes; Python is not included.
 *
 * Built with -O2 -ffp-contract=off -fno-fast-math: an fma or a reordered sum where none is written would change bits.
 * The instruction set is chosen when the library is first used; every choice gives the same bits, because every step
 * is exact. Rounding mode and flush-to-zero are the calling thread's and are set aside during a call.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "arithmetic.h"
#include "rounding.h"
#include "superaccumulator.h"

enum { BLOCK = 2048, STRETCH = 4 * BLOCK, COUNT_WIDE = -1 };
enum { SUM, MEAN, DOT, NORM, VARIANCE };

typedef struct {
    int (*unrounded[4])(const void *, int, double *);
    int (*block[4])(const void *, int, double *);
    void (*doubles[4])(const void *, int, double *);
    void (*scan)(const double *, int, uint64_t *, uint64_t *);
    void (*two_products)(const double *, const double *, int, double *, double *);
    void (*products)(const double *, const double *, int, double *);
    void (*affine)(const double *, int, double, double, const double *, const double *, double *);
    void (*narrow)(const double *, int, float *);
} block_kernels;

/* 2^e for a normal e. */
#define POWER(e) double_of((uint64_t)((e) + 1023) << 52)

static inline float float32_at(const void *x, int64_t i) { return ((const float *)x)[i]; }

static inline float bfloat16_at(const void *x, int64_t i) {
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float float16_at(const void *x, int64_t i) {
    uint16_t h = ((const uint16_t *)x)[i];
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13;
    float value;
    /* The exponents differ by 112 in bias; the product is exact, subnormals included. */
    if (bits >= 0x0f800000) bits |= 0x7f800000;
    memcpy(&value, &bits, sizeof value);
    if (bits < 0x7f800000) value *= 0x1p112f;
    return h >> 15 ? -value : value;
}

static inline double element(int kind, const void *x, int64_t i) {
    switch (kind) {
    case FLOAT64: return ((const double *)x)[i];
    case FLOAT32: return float32_at(x, i);
    case FLOAT16: return float16_at(x, i);
    default: return bfloat16_at(x, i);
    }
}

#if ON_X86
#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,f16c")))
#define WIDTH 64
#define WIDEN(a) (VD) _mm512_cvtps_pd((__m256)(a))
#define NARROW(a) (HALF) _mm512_cvtpd_ps((__m512d)(a))
#define MAX64(a, b) (VQ) _mm512_max_epu64((__m512i)(a), (__m512i)(b))
#define MIN64(a, b) (VQ) _mm512_min_epu64((__m512i)(a), (__m512i)(b))
#define MAX32(a, b) (VU) _mm512_max_epu32((__m512i)(a), (__m512i)(b))
#define MIN32(a, b) (VU) _mm512_min_epu32((__m512i)(a), (__m512i)(b))
#define MAX16(a, b) (VH) _mm512_max_epu16((__m512i)(a), (__m512i)(b))
#define MIN16(a, b) (VH) _mm512_min_epu16((__m512i)(a), (__m512i)(b))
/* vrange: 11 is the larger magnitude, 10 the smaller, with the sign cleared; of a number and a NaN, the number. */
#define LARGER64(a, b) (VD) _mm512_range_pd((__m512d)(a), (__m512d)(b), 11)
#define SMALLER64(a, b) (VD) _mm512_range_pd((__m512d)(a), (__m512d)(b), 10)
#define LARGEST64(a) _mm512_reduce_max_pd((__m512d)(a))
#define SMALLEST64(a) _mm512_reduce_min_pd((__m512d)(a))
#define FUSED64(a, one, c) (VD) _mm512_fmadd_pd((__m512d)(a), (__m512d)(one), (__m512d)(c))
#define FUSED32(a, one, c) (VF) _mm512_fmadd_ps((__m512)(a), (__m512)(one), (__m512)(c))
#define LOAD_FLOAT16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define LOADS_FLOAT16(p) (VF) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define LOAD_BFLOAT16(p) _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16)
#include "blocks.h"
#undef NAME
#undef TARGET
#undef WIDTH
#undef WIDEN
#undef NARROW
#undef MAX64
#undef MIN64
#undef MAX32
#undef MIN32
#undef MAX16
#undef MIN16
#undef LARGER64
#undef SMALLER64
#undef LARGEST64
#undef SMALLEST64
#undef FUSED64
#undef FUSED32
#undef LOAD_FLOAT16
#undef LOADS_FLOAT16
#undef LOAD_BFLOAT16

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WIDTH 32
#define WIDEN(a) (VD) _mm256_cvtps_pd((__m128)(a))
#define NARROW(a) (HALF) _mm256_cvtpd_ps((__m256d)(a))
#define CHOOSE64(m, a, b) (VQ)(((VQ)(m) & (a)) | (~(VQ)(m) & (b)))
#define MAX64(a, b) CHOOSE64(_mm256_cmpgt_epi64((__m256i)(a), (__m256i)(b)), a, b)
#define MIN64(a, b) CHOOSE64(_mm256_cmpgt_epi64((__m256i)(b), (__m256i)(a)), a, b)
#define MAX32(a, b) (VU) _mm256_max_epu32((__m256i)(a), (__m256i)(b))
#define MIN32(a, b) (VU) _mm256_min_epu32((__m256i)(a), (__m256i)(b))
#define MAX16(a, b) (VH) _mm256_max_epu16((__m256i)(a), (__m256i)(b))
#define MIN16(a, b) (VH) _mm256_min_epu16((__m256i)(a), (__m256i)(b))
/* Of a number and a NaN, vmax and vmin return the second operand: the number. */
#define SIZE64(a) (__m256d)((VQ)(a) & 0x7fffffffffffffff)
#define LARGER64(a, b) (VD) _mm256_max_pd(SIZE64(a), (__m256d)(b))
#define SMALLER64(a, b) (VD) _mm256_min_pd(SIZE64(a), (__m256d)(b))
#define FUSED64(a, one, c) (VD) _mm256_fmadd_pd((__m256d)(a), (__m256d)(one), (__m256d)(c))
#define FUSED32(a, one, c) (VF) _mm256_fmadd_ps((__m256)(a), (__m256)(one), (__m256)(c))
#define LOAD_FLOAT16(p) _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)(p)))
#define LOADS_FLOAT16(p) (VF) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define LOAD_BFLOAT16(p) _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(p))), 16)
#define LARGEST64(a) NAME(largest64)(a)
#define SMALLEST64(a) NAME(smallest64)(a)
#define LOOP_OVER_LANES
#include "blocks.h"
#undef LOOP_OVER_LANES
#undef NAME
#undef TARGET
#undef WIDTH
#undef WIDEN
#undef NARROW
#undef MAX64
#undef MIN64
#undef MAX32
#undef MIN32
#undef MAX16
#undef MIN16
#undef LARGER64
#undef SMALLER64
#undef LARGEST64
#undef SMALLEST64
#undef FUSED64
#undef FUSED32
#undef LOAD_FLOAT16
#undef LOADS_FLOAT16
#undef LOAD_BFLOAT16
#undef CHOOSE64
#undef SIZE64
#endif

#define NAME(x) x##_plain
#define TARGET
#define WIDTH 16
#define CHOOSE(type, condition, a, b) (type)(((type)(condition) & (type)(a)) | (~(type)(condition) & (type)(b)))
#define WIDEN(a) (VD){(a)[0], (a)[1]}
#define NARROW(a) ((HALF){(float)(a)[0], (float)(a)[1]})
#define MAX64(a, b) CHOOSE(VQ, (a) > (b), a, b)
#define MIN64(a, b) CHOOSE(VQ, (a) < (b), a, b)
#define MAX32(a, b) CHOOSE(VU, (a) > (b), a, b)
#define MIN32(a, b) CHOOSE(VU, (a) < (b), a, b)
#define MAX16(a, b) CHOOSE(VH, (a) > (b), a, b)
#define MIN16(a, b) CHOOSE(VH, (a) < (b), a, b)
#define SIZE64(a) ((VD)((VQ)(a) & 0x7fffffffffffffff))
#define LARGER64(a, b) (VD) CHOOSE(VQ, SIZE64(a) > (b), SIZE64(a), b)
#define SMALLER64(a, b) (VD) CHOOSE(VQ, SIZE64(a) < (b), SIZE64(a), b)
#define FUSED64(a, one, c) ((a) + (c))
#define FUSED32(a, one, c) ((a) + (c))
#define LOAD_FLOAT16(p) ((HALF){float16_at(p, 0), float16_at(p, 1)})
#define LOADS_FLOAT16(p) ((VF){float16_at(p, 0), float16_at(p, 1), float16_at(p, 2), float16_at(p, 3)})
#define LOAD_BFLOAT16(p) ((HALF){bfloat16_at(p, 0), bfloat16_at(p, 1)})
#define LARGEST64(a) NAME(largest64)(a)
#define SMALLEST64(a) NAME(smallest64)(a)
#define LOOP_OVER_LANES
#include "blocks.h"
#undef LOOP_OVER_LANES

/* --- what the processor has -------------------------------------------------------------------------------------- */

static const block_kernels *kernels = NULL;
static int level_in_use = PLAIN;
static int tells = 0; /* whether the processor says that something was rounded: an emulator need not */

#if ON_X86
/* Compilers before GCC 11 do not know the name of f16c; a compiler's own test says that the system keeps the registers. */
static int has_float16(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* AMD's family 25 has vectors of 64 bytes, but takes two cycles to widen half of one: four floats each, as against
 * five and more with vectors of 32 bytes (Zen 4: 57 and 76 GB/s from its third cache). */
static int widens_slowly(void) {
    unsigned a, b, c, d;
    return __builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d) && ((a >> 8) & 15) + ((a >> 20) & 255) == 25;
}
#endif

/* Everything that a TARGET of this library names, or that a compiler may use for it: with AVX-512F an fma of single
 * numbers may be written with the older encoding, which is FMA's. */
static int best_level(void) {
#if ON_X86
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_float16())) return PLAIN;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return AVX512;
    return AVX2;
#else
    return PLAIN;
#endif
}

/* One rounded element among many exact ones has to be seen, and many exact ones have to be taken. */
static int tells_of_rounding(void) {
    double x[64], out[3];
    float y[64];
    arithmetic before = set_arithmetic();
    for (int i = 0; i < 64; i++) x[i] = y[i] = 1;
    int exact = kernels->unrounded[FLOAT64](x, 64, out) == 1 && kernels->unrounded[FLOAT32](y, 64, out) == 1;
    for (int i = 0; i < 64 && exact; i++) {
        x[i] = y[i] = 0x1p-100f;
        exact = kernels->unrounded[FLOAT64](x, 64, out) == COUNT_WIDE && kernels->unrounded[FLOAT32](y, 64, out) == COUNT_WIDE;
        x[i] = y[i] = 1;
    }
    restore_arithmetic(before);
    return exact;
}

/* Use an instruction set (or the best there is, if it is better than that); returns the one in use. */
EXPORT int driftscope_use(int wanted) {
    int level = best_level();
    if (wanted < level) level = wanted;
    kernels = &kernels_plain;
#if ON_X86
    static block_kernels mixed;
    mixed = kernels_avx512;
    if (widens_slowly()) mixed.unrounded[FLOAT32] = kernels_avx2.unrounded[FLOAT32];
    if (level == AVX2) kernels = &kernels_avx2;
    if (level == AVX512) kernels = &mixed;
#endif
    level_in_use = level;
    tells = tells_of_rounding();
    return level;
}

int driftscope_level(void) { return level_in_use; }

/* --- rows -------------------------------------------------------------------------------------------------------- */

typedef struct {
    accumulator sum, squares; /* `squares` holds products and squares */
} state;

typedef struct {
    double a[BLOCK], b[BLOCK], high[BLOCK], low[BLOCK];
} scratch;

static inline int minus_zero(double value) { return bits_of(value) == 1ull << 63; }

static inline int product_is_minus_zero(double a, double b) {
    uint64_t x = bits_of(a) << 1, y = bits_of(b) << 1, limit = 0xffe0000000000000;
    return (x == 0 || y == 0) && x < limit && y < limit && (bits_of(a) ^ bits_of(b)) >> 63;
}

static void note_zeros(accumulator *acc, int kind, const void *x, int n) {
    for (int i = 0; i < n && !(acc->flags & SAW_OTHER_THAN_MINUS_ZERO); i++)
        if (!minus_zero(element(kind, x, i))) acc->flags |= SAW_OTHER_THAN_MINUS_ZERO;
}

/* Stretches that are added carefully after one that was rounded, twice as many after each further one. */
typedef struct {
    int careful, left;
} patience;

/* A stretch added before the processor is asked, or COUNT_WIDE. */
static int stretch_sum(int kind, const void *x, int n, double *out, patience *with) {
    if (!tells || !kernels->unrounded[kind]) return COUNT_WIDE;
    if (with->left > 0) return with->left--, COUNT_WIDE;
    int slices = kernels->unrounded[kind](x, n, out);
    with->careful = slices != COUNT_WIDE ? 0 : with->careful < 64 ? 2 * with->careful + 1 : 64;
    with->left = with->careful;
    return slices;
}

static void add_block(accumulator *acc, int kind, const char *x, int n) {
    double out[3];
    int slices = kernels->block[kind](x, n, out);
    for (int i = 0; i < slices; i++) acc_add(acc, out[i]);
    if (slices == COUNT_WIDE)
        for (int i = 0; i < n; i++) acc_add(acc, element(kind, x, i));
}

static void add_sum(accumulator *acc, int kind, const char *x, int64_t n) {
    int size = FORMATS[kind].bytes;
    patience with = {0, 0};
    for (int64_t start = 0; start < n; start += STRETCH) {
        int count = n - start < STRETCH ? (int)(n - start) : STRETCH;
        const char *at = x + start * size;
        double out[3];
        note_zeros(acc, kind, at, count);
        int slices = stretch_sum(kind, at, count, out, &with);
        for (int i = 0; i < slices; i++) acc_add(acc, out[i]);
        for (int i = 0; slices == COUNT_WIDE && i < count; i += BLOCK)
            add_block(acc, kind, at + (int64_t)i * size, count - i < BLOCK ? count - i : BLOCK);
    }
}

/* Exponents for which Veltkamp's splitting neither overflows nor underflows. */
static int products_are_exact(const double *x, int n) {
    uint64_t most, least;
    kernels->scan(x, n, &most, &least);
    int top = (int)(most >> 52), bottom = (int)((least + 1) >> 52);
    return most == 0 || (top - 1022 <= 470 && bottom - 1075 >= -530);
}

static void add_block_of_products(accumulator *acc, int kind, const double *a, const double *b, int n, scratch *s) {
    double out[6];
    int slices = COUNT_WIDE, padded = (n + 7) & ~7;
    if (kind != FLOAT64) {
        kernels->products(a, b, padded, s->high);
        slices = kernels->block[FLOAT64](s->high, n, out);
    } else if (products_are_exact(a, n) && (a == b || products_are_exact(b, n))) {
        kernels->two_products(a, b, padded, s->high, s->low);
        slices = kernels->block[FLOAT64](s->high, n, out);
        if (slices != COUNT_WIDE) {
            int more = kernels->block[FLOAT64](s->low, n, out + slices);
            slices = more == COUNT_WIDE ? COUNT_WIDE : slices + more;
        }
    }
    for (int i = 0; i < slices; i++) acc_add(acc, out[i]);
    if (slices == COUNT_WIDE)
        for (int i = 0; i < n; i++) acc_add_product(acc, a[i], b[i]);
}

static void add_products(accumulator *acc, int kind, const char *x, const char *y, int64_t n, scratch *s) {
    int size = FORMATS[kind].bytes;
    for (int64_t start = 0; start < n; start += BLOCK) {
        int count = n - start < BLOCK ? (int)(n - start) : BLOCK;
        int padded = (count + 7) & ~7;
        double *b = x == y ? s->a : s->b;
        kernels->doubles[kind](x + start * size, count, s->a);
        if (x != y) kernels->doubles[kind](y + start * size, count, s->b);
        for (int i = count; i < padded; i++) s->a[i] = b[i] = 0;
        for (int i = 0; i < count && !(acc->flags & SAW_OTHER_THAN_MINUS_ZERO); i++)
            if (!product_is_minus_zero(s->a[i], b[i])) acc->flags |= SAW_OTHER_THAN_MINUS_ZERO;
        add_block_of_products(acc, kind, s->a, b, count, s);
    }
}

static void accumulate(state *st, int op, int kind, const void *x, const void *y, int64_t n, scratch *s) {
    if (op == SUM || op == MEAN || op == VARIANCE) add_sum(&st->sum, kind, x, n);
    if (op == DOT) add_products(&st->squares, kind, x, y, n, s);
    if (op == NORM || op == VARIANCE) add_products(&st->squares, kind, x, x, n, s);
}

/* --- one number out ---------------------------------------------------------------------------------------------- */

/* n * squares - sum^2, exactly; it is never negative. Both are multiples of 2^-BIAS and below 2^2432 for n < 2^32. */
static void spread(state *st, int64_t n, magnitude *result) {
    magnitude sum, squares;
    magnitude_of(&st->sum, &sum);
    magnitude_of(&st->squares, &squares);
    int64_t column[LIMBS + 8] = {0};
    wide carry = 0;
    for (int k = squares.low; k < LIMBS; k++) {
        carry += (wide)squares.digit[k] * (uint64_t)n;
        column[k] = (int64_t)(uint32_t)carry;
        carry >>= 32;
    }
    const int shift = BIAS / 32;
    for (int i = sum.low; i < sum.high; i++) {
        uint64_t over = 0;
        int k = i + sum.low - shift;
        for (int j = sum.low; j < sum.high; j++, k++) {
            over += (uint64_t)sum.digit[i] * sum.digit[j];
            column[k] -= (int64_t)(uint32_t)over;
            over >>= 32;
        }
        for (; over && k < LIMBS; k++, over >>= 32) column[k] -= (int64_t)(uint32_t)over;
    }
    memset(result, 0, sizeof *result);
    int64_t borrow = 0;
    for (int k = 0; k < LIMBS; k++) {
        borrow += column[k];
        result->digit[k] = (uint32_t)borrow;
        borrow >>= 32;
    }
    result->high = LIMBS;
    magnitude_trim(result);
}

static uint64_t finish_variance(state *st, int64_t n, int64_t correction, const format *f) {
    if (n == 0 || (st->squares.flags & (SAW_NAN | SAW_PLUS_INFINITY))) return nan_bits(f);
    magnitude m;
    spread(st, n, &m);
    if (n <= correction) return m.high > m.low ? f->infinity : nan_bits(f);
    magnitude_divide(&m, (uint64_t)n);
    magnitude_divide(&m, (uint64_t)(n - correction));
    return round_magnitude(&m, f);
}

static uint64_t finish(state *st, int op, int64_t n, int64_t correction, const format *f) {
    if (op == VARIANCE) return finish_variance(st, n, correction, f);
    accumulator *acc = op == SUM || op == MEAN ? &st->sum : &st->squares;
    int plus = acc->flags & SAW_PLUS_INFINITY, minus = acc->flags & SAW_MINUS_INFINITY;
    if ((acc->flags & SAW_NAN) || (plus && minus) || (op == MEAN && n == 0)) return nan_bits(f);
    if (plus) return f->infinity;
    if (minus) return f->infinity | sign_bit(f);
    magnitude m;
    magnitude_of(acc, &m);
    if (m.high <= m.low) return n > 0 && !(acc->flags & SAW_OTHER_THAN_MINUS_ZERO) ? sign_bit(f) : 0;
    if (op == MEAN) magnitude_divide(&m, (uint64_t)n);
    return op == NORM ? round_square_root(&m, f) : round_magnitude(&m, f);
}

static int one_block_sum(int kind, const void *x, int64_t n, const format *f, uint64_t *bits) {
    double out[3];
    patience with = {0, 0};
    if (n > BLOCK || n == 0) return 0;
    int slices = stretch_sum(kind, x, (int)n, out, &with);
    if (slices == COUNT_WIDE) slices = kernels->block[kind](x, (int)n, out);
    if (slices != 1 || out[0] == 0) return 0;
    *bits = round_double(out[0], f);
    return 1;
}

/* --- what Python calls ------------------------------------------------------------------------------------------- */

EXPORT int64_t driftscope_state_size(void) { return (int64_t)sizeof(state); }

/* Reduce each of `rows` contiguous rows of n elements; y is used by DOT only. */
EXPORT void driftscope_rows(int op, int kind, int out_kind, const void *x, const void *y, int64_t rows, int64_t n,
                            int64_t correction, void *out) {
    arithmetic before = set_arithmetic();
    const format *f = &FORMATS[out_kind];
    state st;
    scratch s;
    acc_create(&st.sum);
    acc_create(&st.squares);
    for (int64_t i = 0; i < rows; i++) {
        const char *row = (const char *)x + i * n * FORMATS[kind].bytes;
        const char *other = op == DOT ? (const char *)y + i * n * FORMATS[kind].bytes : NULL;
        uint64_t bits;
        if (op != SUM || !one_block_sum(kind, row, n, f, &bits)) {
            accumulate(&st, op, kind, row, other, n, &s);
            bits = finish(&st, op, n, correction, f);
            acc_reset(&st.sum);
            acc_reset(&st.squares);
        }
        store(out, i, f, bits);
    }
    restore_arithmetic(before);
}

/* The sum of n elements, rounded to their own format: the usual call, with as few arguments as there can be. */
EXPORT void driftscope_total(int kind, const void *x, int64_t n, void *out) {
    driftscope_rows(SUM, kind, kind, x, NULL, 1, n, 0, out);
}

/* Part of a long row, for one thread; `memory` has driftscope_state_size() bytes. */
EXPORT void driftscope_part(int op, int kind, const void *x, const void *y, int64_t n, void *memory) {
    arithmetic before = set_arithmetic();
    state *st = memory;
    scratch s;
    acc_create(&st->sum);
    acc_create(&st->squares);
    accumulate(st, op, kind, x, y, n, &s);
    restore_arithmetic(before);
}

EXPORT void driftscope_join(int op, int out_kind, void *memory, int64_t count, int64_t n, int64_t correction, void *out) {
    state *st = memory;
    for (int64_t i = 1; i < count; i++) {
        acc_join(&st[0].sum, &st[i].sum);
        acc_join(&st[0].squares, &st[i].squares);
    }
    store(out, 0, &FORMATS[out_kind], finish(&st[0], op, n, correction, &FORMATS[out_kind]));
}

/* A block of doubles in the format of the result, each rounded once. */
static void store_block(const double *x, int n, int kind, char *out) {
    const format *f = &FORMATS[kind];
    if (kind == FLOAT64) memcpy(out, x, sizeof(double) * (size_t)n);
    else if (kind == FLOAT32) kernels->narrow(x, n, (float *)out);
    else
        for (int i = 0; i < n; i++) {
            uint64_t sign = bits_of(x[i]) >> 63 ? sign_bit(f) : 0;
            if (x[i] - x[i] == 0) store(out, i, f, round_double(x[i], f));
            else store(out, i, f, x[i] != x[i] ? nan_bits(f) : f->infinity | sign);
        }
}

/* Rows normalised by their exact mean and variance; weight and bias have n doubles, or are NULL. */
EXPORT void driftscope_layer_norm(int kind, const void *x, const double *weight, const double *bias, double eps,
                                  int64_t rows, int64_t n, void *out) {
    arithmetic before = set_arithmetic();
    state st;
    scratch s;
    acc_create(&st.sum);
    acc_create(&st.squares);
    int size = FORMATS[kind].bytes;
    for (int64_t i = 0; i < rows; i++) {
        const char *row = (const char *)x + i * n * size;
        accumulate(&st, VARIANCE, kind, row, NULL, n, &s);
        double mean = double_of(finish(&st, MEAN, n, 0, &FORMATS[FLOAT64]));
        double scale = 1.0 / sqrt(double_of(finish(&st, VARIANCE, n, 0, &FORMATS[FLOAT64])) + eps);
        acc_reset(&st.sum);
        acc_reset(&st.squares);
        for (int64_t start = 0; start < n; start += BLOCK) {
            int count = n - start < BLOCK ? (int)(n - start) : BLOCK;
            kernels->doubles[kind](row + start * size, count, s.a);
            kernels->affine(s.a, count, mean, scale, weight ? weight + start : NULL, bias ? bias + start : NULL, s.b);
            store_block(s.b, count, kind, (char *)out + (i * n + start) * size);
        }
    }
    restore_arithmetic(before);
}

/* out[i, j] = dot(a[i], b[j]), rounded once. */
EXPORT void driftscope_dots(int kind, int out_kind, const void *a, const void *b, int64_t rows, int64_t columns,
                            int64_t n, void *out) {
    arithmetic before = set_arithmetic();
    state st;
    scratch s;
    acc_create(&st.sum);
    acc_create(&st.squares);
    int64_t stride = n * FORMATS[kind].bytes;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            accumulate(&st, DOT, kind, (const char *)a + i * stride, (const char *)b + j * stride, n, &s);
            store(out, i * columns + j, &FORMATS[out_kind], finish(&st, DOT, n, 0, &FORMATS[out_kind]));
            acc_reset(&st.squares);
        }
    restore_arithmetic(before);
}
