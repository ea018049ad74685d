/* An exact sum of binary floating-point numbers: a long fixed-point number of 32-bit limbs kept in 64-bit words.
 *
 * Limb k has weight 2^(32k - BIAS). The range holds every product of two doubles (down to 2^-2148, up to 2^2048) and
 * 2^63 of them. A limb has 31 spare bits, so carries are taken once per 2^30 additions. Only the limbs between `low`
 * and `high` can be non-zero; short rows then cost what they touch.
 */
#ifndef DRIFTSCOPE_SUPERACCUMULATOR_H
#define DRIFTSCOPE_SUPERACCUMULATOR_H

#include <stdint.h>
#include <string.h>

typedef unsigned __int128 wide;

enum { BIAS = 2176, LIMBS = 144, CARRY_EVERY = 1 << 30 };
enum { SAW_NAN = 1, SAW_PLUS_INFINITY = 2, SAW_MINUS_INFINITY = 4, SAW_OTHER_THAN_MINUS_ZERO = 8 };

typedef struct {
    int64_t limb[LIMBS];
    int64_t pending;
    int32_t low, high; /* touched limbs: low <= k < high */
    int32_t flags;
    int32_t unused;
} accumulator;

static inline void acc_reset(accumulator *acc) {
    if (acc->high > acc->low) memset(acc->limb + acc->low, 0, sizeof(int64_t) * (size_t)(acc->high - acc->low));
    acc->pending = 0;
    acc->low = LIMBS;
    acc->high = 0;
    acc->flags = 0;
}

static inline void acc_create(accumulator *acc) {
    memset(acc, 0, sizeof *acc);
    acc->low = LIMBS;
}

static inline void acc_touch(accumulator *acc, int low, int high) {
    if (low < acc->low) acc->low = low;
    if (high > acc->high) acc->high = high;
}

/* Bring every limb but the highest into [0, 2^32); the highest keeps the sign. */
static void acc_carry(accumulator *acc) {
    if (acc->high <= acc->low) return;
    if (acc->high < LIMBS - 1) acc->high += 1;
    for (int k = acc->low; k < acc->high - 1; k++) {
        acc->limb[k + 1] += acc->limb[k] >> 32;
        acc->limb[k] &= 0xffffffff;
    }
    acc->pending = 0;
}

/* Add value * 2^(position - BIAS), value < 2^64. */
static inline void acc_add_bits(accumulator *acc, uint64_t value, int position, int negative) {
    int k = position >> 5;
    wide shifted = (wide)value << (position & 31);
    int64_t a = (int64_t)(uint32_t)shifted;
    int64_t b = (int64_t)(uint32_t)(shifted >> 32);
    int64_t c = (int64_t)(uint64_t)(shifted >> 64);
    acc->limb[k] += negative ? -a : a;
    acc->limb[k + 1] += negative ? -b : b;
    acc->limb[k + 2] += negative ? -c : c;
    acc_touch(acc, k, k + 3);
    if (++acc->pending >= CARRY_EVERY) acc_carry(acc);
}

static inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int acc_note_special(accumulator *acc, double value) {
    uint64_t magnitude = bits_of(value) & 0x7fffffffffffffff;
    if (magnitude < 0x7ff0000000000000) return 0;
    if (magnitude > 0x7ff0000000000000) acc->flags |= SAW_NAN;
    else acc->flags |= bits_of(value) >> 63 ? SAW_MINUS_INFINITY : SAW_PLUS_INFINITY;
    return 1;
}

typedef struct {
    uint64_t significand;
    int exponent, negative;
} parts;

/* value = (-1)^negative * significand * 2^exponent, for finite values. */
static inline parts parts_of(double value) {
    uint64_t bits = bits_of(value);
    int field = (int)(bits >> 52) & 0x7ff;
    parts p = {bits & 0xfffffffffffff, (field ? field : 1) - 1075, (int)(bits >> 63)};
    if (field) p.significand |= 1ull << 52;
    return p;
}

static inline void acc_add(accumulator *acc, double value) {
    if (acc_note_special(acc, value)) return;
    parts p = parts_of(value);
    if (p.significand) acc_add_bits(acc, p.significand, p.exponent + BIAS, p.negative);
}

static inline void acc_add_product(accumulator *acc, double a, double b) {
    uint64_t limit = 0x7ff0000000000000, x = bits_of(a) & ~(1ull << 63), y = bits_of(b) & ~(1ull << 63);
    if (x >= limit || y >= limit) {
        int negative = (int)((bits_of(a) ^ bits_of(b)) >> 63);
        if (x > limit || y > limit || x == 0 || y == 0) acc->flags |= SAW_NAN;
        else acc->flags |= negative ? SAW_MINUS_INFINITY : SAW_PLUS_INFINITY;
        return;
    }
    if (x == 0 || y == 0) return;
    parts p = parts_of(a), q = parts_of(b);
    wide product = (wide)p.significand * q.significand;
    int position = p.exponent + q.exponent + BIAS, negative = p.negative ^ q.negative;
    acc_add_bits(acc, (uint64_t)product, position, negative);
    if (product >> 64) acc_add_bits(acc, (uint64_t)(product >> 64), position + 64, negative);
}

static void acc_join(accumulator *into, accumulator *other) {
    acc_carry(into);
    acc_carry(other);
    for (int k = other->low; k < other->high; k++) into->limb[k] += other->limb[k];
    if (other->high > other->low) acc_touch(into, other->low, other->high);
    into->pending = 1;
    into->flags |= other->flags;
}

/* A sign and a magnitude of 32-bit digits: what is left when the additions are over. `sticky` says that something
 * non-zero lies below the lowest digit. */
typedef struct {
    uint32_t digit[LIMBS + 8];
    int low, high; /* non-zero digits only in low <= k < high */
    int negative, sticky;
} magnitude;

static void magnitude_trim(magnitude *m) {
    while (m->high > m->low && m->digit[m->high - 1] == 0) m->high -= 1;
    while (m->low < m->high && m->digit[m->low] == 0) m->low += 1;
}

static void magnitude_of(accumulator *acc, magnitude *m) {
    memset(m, 0, sizeof *m);
    if (acc->high <= acc->low) return;
    acc_carry(acc);
    m->negative = acc->limb[acc->high - 1] < 0;
    m->low = acc->low;
    m->high = acc->high;
    int64_t borrow = 0;
    for (int k = acc->low; k < acc->high; k++) {
        int64_t limb = (m->negative ? -acc->limb[k] : acc->limb[k]) + borrow;
        m->digit[k] = (uint32_t)limb;
        borrow = limb >> 32;
    }
    magnitude_trim(m);
}

/* Divide by a positive integer, down to the lowest digit; the remainder goes into `sticky`. */
static void magnitude_divide(magnitude *m, uint64_t divisor) {
    uint64_t remainder = 0;
    for (int k = m->high - 1; k >= 0; k--) {
        /* Below the digits the quotient is only needed as far as any format can see. */
        if (k < m->low && (remainder == 0 || k < m->high - 8)) break;
        wide window = ((wide)remainder << 32) | m->digit[k];
        m->digit[k] = (uint32_t)(window / divisor);
        remainder = (uint64_t)(window % divisor);
        if (k < m->low) m->low = k;
    }
    m->sticky |= remainder != 0;
    magnitude_trim(m);
}

#endif
