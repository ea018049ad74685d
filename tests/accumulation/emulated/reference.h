/* The same results in a few plain lines each: one digit, one product, one addition after the other. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int bits, exponent, fraction;
} layout;

/* In the order of the library's kinds: float64, float32, float16, bfloat16. */
static const layout LAYOUTS[4] = {{64, 11, 52}, {32, 8, 23}, {16, 5, 10}, {16, 8, 7}};

/* A number of base 2^32 in two's complement, digit k of weight 2^(32 k - POINT). */
enum { DIGITS = 150, POINT = 2200 };
typedef struct {
    uint32_t digit[DIGITS];
    int nan, plus, minus, other_than_minus_zero;
} long_number;

typedef struct {
    uint64_t significand;
    int exponent, negative, kind; /* kind: 0 a number, 1 an infinity, 2 a NaN */
} unpacked;

static unpacked unpack(int kind, const void *at) {
    const layout *f = &LAYOUTS[kind];
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)f->bits / 8);
    uint64_t fraction = bits & ((1ull << f->fraction) - 1);
    int field = (int)(bits >> f->fraction) & ((1 << f->exponent) - 1), top = (1 << f->exponent) - 1;
    unpacked u = {fraction, (field ? field : 1) - top / 2 - f->fraction, (int)(bits >> (f->bits - 1)) & 1, 0};
    if (field) u.significand |= 1ull << f->fraction;
    if (field == top) u.kind = fraction ? 2 : 1;
    return u;
}

/* Add or subtract a significand times 2^exponent, digit by digit with its carry. */
static void add_scaled(long_number *s, unsigned __int128 significand, int exponent, int negative) {
    int position = exponent + POINT, k = position / 32;
    uint32_t digits[6] = {0};
    for (int i = 0; i < 128; i++)
        if (significand >> i & 1) digits[(position % 32 + i) / 32] |= 1u << (position % 32 + i) % 32;
    int64_t carry = 0;
    for (int i = 0; k + i < DIGITS; i++) {
        int64_t digit = i < 6 ? digits[i] : 0;
        carry += (int64_t)s->digit[k + i] + (negative ? -digit : digit);
        s->digit[k + i] = (uint32_t)carry;
        carry >>= 32;
        if (i >= 5 && carry == 0) return;
    }
}

static void note(long_number *s, int kind, int negative, int is_zero) {
    if (kind == 2) s->nan = 1;
    else if (kind == 1 && negative) s->minus = 1;
    else if (kind == 1) s->plus = 1;
    if (kind || !is_zero || !negative) s->other_than_minus_zero = 1;
}

static int bit_of(const long_number *s, int i) { return i < 0 ? 0 : s->digit[i / 32] >> i % 32 & 1; }

/* To nearest, ties to even, straight to a format. */
static uint64_t rounded(long_number *s, int64_t n, int to) {
    const layout *f = &LAYOUTS[to];
    uint64_t infinity = ((1ull << f->exponent) - 1) << f->fraction, sign = 1ull << (f->bits - 1);
    if (s->nan || (s->plus && s->minus)) return infinity | 1ull << (f->fraction - 1);
    if (s->plus) return infinity;
    if (s->minus) return infinity | sign;
    int negative = s->digit[DIGITS - 1] >> 31;
    for (uint64_t i = 0, carry = 1; negative && i < DIGITS; i++) {
        carry += (uint32_t)~s->digit[i];
        s->digit[i] = (uint32_t)carry;
        carry >>= 32;
    }
    int top = 32 * DIGITS - 1;
    while (top >= 0 && !bit_of(s, top))
        top--;
    if (top < 0) return n > 0 && !s->other_than_minus_zero ? sign : 0;
    int lowest = 1 - (1 << (f->exponent - 1)) + 1 - f->fraction + POINT; /* the last bit of a subnormal */
    int last = top - f->fraction > lowest ? top - f->fraction : lowest;
    uint64_t kept = 0;
    for (int i = last + f->fraction + 1; i >= last; i--)
        kept = kept << 1 | (uint64_t)bit_of(s, i);
    int below = 0;
    for (int i = 0; i < last - 1 && !below; i++)
        below = bit_of(s, i);
    kept += (uint64_t)(bit_of(s, last - 1) && (below || kept & 1));
    if (last - lowest >= 1 << f->exponent) return infinity | (negative ? sign : 0);
    uint64_t bits = ((uint64_t)(last - lowest) << f->fraction) + kept;
    return (bits >= infinity ? infinity : bits) | (negative ? sign : 0);
}

static uint64_t exact_sum(int kind, int to, const char *x, int64_t n) {
    long_number s = {0};
    for (int64_t i = 0; i < n; i++) {
        unpacked u = unpack(kind, x + i * LAYOUTS[kind].bits / 8);
        note(&s, u.kind, u.negative, u.significand == 0);
        if (u.kind == 0 && u.significand) add_scaled(&s, u.significand, u.exponent, u.negative);
    }
    return rounded(&s, n, to);
}

static uint64_t exact_dot(int kind, int to, const char *x, const char *y, int64_t n) {
    long_number s = {0};
    for (int64_t i = 0; i < n; i++) {
        unpacked u = unpack(kind, x + i * LAYOUTS[kind].bits / 8), v = unpack(kind, y + i * LAYOUTS[kind].bits / 8);
        int negative = u.negative ^ v.negative, special = u.kind > v.kind ? u.kind : v.kind;
        int u_is_zero = u.kind == 0 && u.significand == 0, v_is_zero = v.kind == 0 && v.significand == 0;
        if (special == 1 && (u_is_zero || v_is_zero)) special = 2;
        note(&s, special, negative, u_is_zero || v_is_zero);
        if (special == 0 && !u_is_zero && !v_is_zero)
            add_scaled(&s, (unsigned __int128)u.significand * v.significand, u.exponent + v.exponent, negative);
    }
    return rounded(&s, n, to);
}

/* kind: 0 for double, 1 for float, as the library's products and replays have it. */
static void chained_product(int kind, const void *a, const void *b, const void *bias, void *c, int64_t rows,
                            int64_t depth, int64_t columns, int64_t a_row, int64_t b_row, int64_t b_column) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double d = 0;
            float s = 0;
            for (int64_t k = 0; k < depth; k++) {
                int64_t left = i * a_row + k, right = k * b_row + j * b_column;
                if (kind) s = fmaf(((const float *)a)[left], ((const float *)b)[right], s);
                else d = fma(((const double *)a)[left], ((const double *)b)[right], d);
            }
            /* A chain of no terms is +0, and so is its sum with a bias of -0. */
            if (bias && kind) s += ((const float *)bias)[j];
            if (bias && !kind) d += ((const double *)bias)[j];
            if (kind) ((float *)c)[i * columns + j] = s;
            else ((double *)c)[i * columns + j] = d;
        }
}

/* n - 1 additions that join any two of what is there, in any order. */
static void random_tree(int64_t n, int64_t *left, int64_t *right, uint64_t (*draw)(void)) {
    int64_t *there = malloc(sizeof(int64_t) * (size_t)n), count = n;
    int along = (int)(draw() % 3); /* now and then a chain */
    for (int64_t k = 0; k < n; k++)
        there[k] = k;
    for (int64_t k = 0; k < n - 1; k++) {
        int64_t i = along ? (int64_t)(draw() % (uint64_t)count) : count - 1;
        left[k] = there[i];
        there[i] = there[--count];
        int64_t j = along ? (int64_t)(draw() % (uint64_t)count) : count - 1;
        right[k] = there[j];
        there[j] = n + k;
    }
    free(there);
}

static void added_by_tree(int kind, int64_t n, const int64_t *left, const int64_t *right, const int8_t *unrounded,
                          const void *x, const void *w, void *out) {
    double *d = malloc(sizeof(double) * (size_t)(2 * n));
    float *s = malloc(sizeof(float) * (size_t)(2 * n));
    const double *xd = x, *wd = w;
    const float *xs = x, *ws = w;
    for (int64_t k = 0; k < n; k++) {
        if (kind) s[k] = w ? xs[k] * ws[k] : xs[k];
        else d[k] = w ? xd[k] * wd[k] : xd[k];
    }
    for (int64_t k = 0; k < n - 1; k++) {
        int64_t a = left[k], b = right[k];
        /* Of two products only one can enter unrounded: of the two terms the later one goes first. */
        if (a < n && (b >= n || a > b)) a = right[k], b = left[k];
        int64_t product = -1, sum = -1;
        if (unrounded && b < n && unrounded[b]) product = b, sum = a;
        else if (unrounded && b < n && a < n && unrounded[a]) product = a, sum = b;
        if (kind) s[n + k] = product < 0 ? s[a] + s[b] : fmaf(xs[product], ws[product], s[sum]);
        else d[n + k] = product < 0 ? d[a] + d[b] : fma(xd[product], wd[product], d[sum]);
    }
    if (kind) *(float *)out = s[n > 1 ? 2 * n - 2 : 0];
    else *(double *)out = d[n > 1 ? 2 * n - 2 : 0];
    free(d);
    free(s);
}

#endif
