/* One rounding, to nearest and ties to even, from an exact number straight to a format: never by way of a double. */
#ifndef DRIFTSCOPE_ROUNDING_H
#define DRIFTSCOPE_ROUNDING_H

#include "superaccumulator.h"

enum { FLOAT64, FLOAT32, FLOAT16, BFLOAT16 };

typedef struct {
    int precision;     /* significand bits, the hidden one included */
    int lowest;        /* exponent of the last bit of a subnormal */
    int bytes;
    uint64_t infinity; /* its bits; the sign is the top bit */
} format;

static const format FORMATS[4] = {
    {53, -1074, 8, 0x7ff0000000000000},
    {24, -149, 4, 0x7f800000},
    {11, -24, 2, 0x7c00},
    {8, -133, 2, 0x7f80},
};

static inline uint64_t nan_bits(const format *f) { return f->infinity | 1ull << (f->precision - 2); }
static inline uint64_t sign_bit(const format *f) { return 1ull << (8 * f->bytes - 1); }

static inline void store(void *out, int64_t i, const format *f, uint64_t bits) {
    if (f->bytes == 8) ((uint64_t *)out)[i] = bits;
    else if (f->bytes == 4) ((uint32_t *)out)[i] = (uint32_t)bits;
    else ((uint16_t *)out)[i] = (uint16_t)bits;
}

/* significand * 2^exponent (+ something smaller than 2^exponent when sticky), with significand != 0. */
static uint64_t round_bits(uint64_t significand, int exponent, int sticky, const format *f) {
    int top = 63 - __builtin_clzll(significand) + exponent;
    int last = top - f->precision + 1;
    if (last < f->lowest) last = f->lowest;
    int drop = last - exponent;
    uint64_t kept, guard = 0;
    if (drop <= 0) kept = significand << -drop;
    else if (drop > 64) kept = 0, sticky = 1;
    else {
        kept = drop == 64 ? 0 : significand >> drop;
        guard = significand >> (drop - 1) & 1;
        sticky |= (significand & ((1ull << (drop - 1)) - 1)) != 0;
    }
    kept += guard & ((uint64_t)(sticky != 0) | (kept & 1));
    int field = last - f->lowest; /* of the significand's last bit; the hidden bit adds one to it */
    /* Nothing above the largest exponent needs its significand. */
    if (field > 2046) return f->infinity;
    uint64_t bits = ((uint64_t)field << (f->precision - 1)) + kept;
    return bits >= f->infinity ? f->infinity : bits;
}

/* The 64 bits of m from the highest one down, with what lies below them as sticky. */
static uint64_t leading_bits(const magnitude *m, int *exponent, int *sticky) {
    int k = m->high - 1;
    wide window = 0;
    for (int i = 0; i < 4; i++) window = window << 32 | (k - i >= 0 ? m->digit[k - i] : 0);
    int shift = __builtin_clz(m->digit[k]);
    window <<= shift;
    int below = (uint64_t)window != 0;
    for (int j = k - 4; j >= m->low && !below; j--) below = m->digit[j] != 0;
    *exponent = 32 * (k + 1) - shift - 64 - BIAS;
    *sticky = below | m->sticky;
    return (uint64_t)(window >> 64);
}

static uint64_t round_magnitude(const magnitude *m, const format *f) {
    if (m->high <= m->low) return 0; /* what is below every digit is below half of any subnormal */
    int exponent, sticky;
    uint64_t bits = leading_bits(m, &exponent, &sticky);
    return round_bits(bits, exponent, sticky, f) | (m->negative ? sign_bit(f) : 0);
}

static uint64_t round_double(double value, const format *f) {
    uint64_t sign = bits_of(value) >> 63 ? sign_bit(f) : 0;
    parts p = parts_of(value);
    return p.significand ? round_bits(p.significand, p.exponent, 0, f) | sign : sign;
}

/* The square root: 64 bits of it by digits, the rest as sticky. */
static uint64_t round_square_root(const magnitude *m, const format *f) {
    if (m->high <= m->low) return 0;
    int k = m->high - 1, shift = __builtin_clz(m->digit[k]);
    int exponent = 32 * (k + 1) - shift - 128 - BIAS;
    wide window = 0;
    for (int i = 0; i < 4; i++) window = window << 32 | (k - i >= 0 ? m->digit[k - i] : 0);
    uint32_t fifth = k - 4 >= 0 ? m->digit[k - 4] : 0;
    if (shift) window = window << shift | fifth >> (32 - shift);
    int sticky = m->sticky || (shift ? (uint32_t)(fifth << shift) != 0 : fifth != 0);
    if (exponent & 1) { /* the root needs an even exponent */
        sticky |= (int)(window & 1);
        window >>= 1;
        exponent += 1;
    }
    for (int j = k - 5; j >= m->low && !sticky; j--) sticky = m->digit[j] != 0;
    wide rest = 0, root = 0;
    for (int step = 126; step >= 0; step -= 2) {
        rest = rest << 2 | (window >> step & 3);
        wide trial = root << 2 | 1;
        root <<= 1;
        if (rest >= trial) rest -= trial, root |= 1;
    }
    return round_bits((uint64_t)root, exponent / 2, sticky || rest != 0, f);
}

#endif
