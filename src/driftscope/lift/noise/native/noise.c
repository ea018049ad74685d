/* The noise of ordinary rounding, added to float64 numbers in one pass. Loaded with ctypes; Python is not included.
 *
 * A level is a byte b that stands for b + 1/2: uniform over -127.5 ... 127.5. What is computed, and why, is said in
 * driftscope.lift.noise, which computes it with torch where this library is missing. Built with -ffp-contract=off:
 * every instruction set gives the same bits.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
/* The loops are plain C. Where the loader can choose among copies, they are compiled for wider vectors too. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDER __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDER
#endif

enum { NONE, ROW, EACH }; /* a factor is left out, or there is one for a row, or for each element */
enum { LANES = 8 };
#define INFINITE INT64_C(0x7ff0000000000000) /* bits of infinity */

INLINE int64_t bits_of_size(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & INT64_MAX;
}

INLINE double with_bits(int64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The smallest size of numbers that are not zero, and the largest, as bits: these are ordered like sizes, with NaN behind infinity. */
typedef struct { int64_t smallest, largest; } range;

INLINE void see(range *seen, double clean, double noisy) {
    int64_t before = bits_of_size(clean), after = bits_of_size(noisy);
    before = before ? before : INFINITE;
    seen->smallest = before < seen->smallest ? before : seen->smallest;
    seen->largest = after > seen->largest ? after : seen->largest;
}

/* Sign and exponent of a number, by which errors are listed: positive ones behind the 2048 negative ones. */
INLINE int64_t place_of(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits >> 52) + 2048;
}

/* Keep noise within its share ``room`` of the distance to a value that a function returns exactly: one, its argument. */
INLINE double limited(double x, double noise, double argument, double room) {
    double to_one = fabs(fabs(x) - 1.0), to_argument = fabs(x - argument);
    double limit = (to_one < to_argument ? to_one : to_argument) * room;
    noise = noise < limit ? noise : limit;
    return noise > -limit ? noise : -limit;
}

/* One row; ``terms``, ``argued`` and ``listed`` are known where this is compiled, so that each way is its own loop. */
INLINE void perturb_row(const double *restrict x, double *restrict y, int64_t n, const int8_t *restrict levels,
                        double share, const double *restrict roots, int terms, const int8_t *restrict more,
                        double terms_share, const double *restrict argument, int argued,
                        const double *restrict errors, int listed, double room, int limits, range *seen) {
    range local = *seen;
    for (int64_t i = 0; i < n; i++) {
        double noise = x[i] * ((levels[i] + 0.5) * share);
        if (terms != NONE) noise += (terms == EACH ? roots[i] : 1.0) * ((more[i] + 0.5) * terms_share);
        if (listed) noise *= errors[place_of(argument[i])];
        if (limits) noise = limited(x[i], noise, argued == EACH ? argument[i] : 0.0, room);
        double noisy = x[i] + noise;
        noisy = noisy == 0.0 ? x[i] : noisy; /* zeros keep their sign */
        see(&local, x[i], noisy);
        y[i] = noisy;
    }
    *seen = local;
}

/* Write ``x`` and its noise into ``y``, both of so many rows and columns.
 *
 * Noise is ``share`` of x times a level, and ``terms_share`` of ``row_roots[row] * column_roots[row / period][column]``
 * (either may be NULL and counts as ones) times a level of ``more`` (NULL: none of this). Both are multiplied by the
 * error that ``errors`` lists for ``argument``, where there are such. ``room`` above zero: see ``limited``, where no
 * ``argument`` is zero. ``found`` takes the smallest size in x but zero, and the largest in y.
 */
WIDER EXPORT void driftscope_perturb(const double *x, double *y, int64_t rows, int64_t columns, const int8_t *levels,
                                     double share, const double *row_roots, const double *column_roots, int64_t period,
                                     const int8_t *more, double terms_share, const double *argument,
                                     const double *errors, double room, double *found) {
    range seen = {INFINITE, 0};
    int limits = room > 0.0;
#define WAY(terms, argued, listed, limits)                                                                           \
    perturb_row(x + at, y + at, columns, levels + at, share, roots, terms, other, all, a, argued, errors, listed, room, \
                limits, &seen)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * columns;
        const double *roots = column_roots ? column_roots + r / period * columns : 0;
        const int8_t *other = more ? more + at : 0;
        const double *a = argument ? argument + at : 0;
        double all = terms_share * (row_roots ? row_roots[r] : 1.0);
        if (errors && !more) limits ? WAY(NONE, EACH, 1, 1) : WAY(NONE, EACH, 1, 0);
        else if (errors) limits ? WAY(EACH, EACH, 1, 1) : WAY(EACH, EACH, 1, 0);
        else if (!limits && !more) WAY(NONE, NONE, 0, 0);
        else if (!limits && roots) WAY(EACH, NONE, 0, 0);
        else if (!limits) WAY(ROW, NONE, 0, 0);
        else if (!more && a) WAY(NONE, EACH, 0, 1);
        else if (!more) WAY(NONE, NONE, 0, 1);
        else if (roots && a) WAY(EACH, EACH, 0, 1);
        else if (roots) WAY(EACH, NONE, 0, 1);
        else if (a) WAY(ROW, EACH, 0, 1);
        else WAY(ROW, NONE, 0, 1);
    }
#undef WAY
    found[0] = with_bits(seen.smallest);
    found[1] = with_bits(seen.largest);
}

/* Sum of squares of numbers less ``centre``; of the numbers themselves where ``plain``. */
INLINE double sum_of(const double *restrict x, int64_t n, double centre, int plain) {
    double lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            double part = x[i + k] - centre;
            lanes[k] += plain ? part : part * part;
        }
    for (; i < n; i++) lanes[0] += plain ? x[i] - centre : (x[i] - centre) * (x[i] - centre);
    return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/* Size of each row before it was centred, in units of the result; see NormalisedRows.size. */
WIDER EXPORT void driftscope_row_sizes(const double *rows, const double *before, int64_t count, int64_t length,
                                       double epsilon, double gain, double equal, double *sizes) {
    for (int64_t r = 0; r < count; r++) {
        double size = sqrt(sum_of(rows + r * length, length, 0.0, 0) / (double)length);
        if (before) {
            const double *x = before + r * length;
            double mean = sum_of(x, length, 0.0, 1) / (double)length, square = mean * mean;
            double variance = sum_of(x, length, mean, 0) / (double)length;
            double known = variance + epsilon, whole = square + variance;
            double level = variance <= equal * whole ? gain * sqrt(whole / known) : 0.0;
            size *= sqrt(1.0 + square / known);
            size = size < level ? level : size;
        }
        sizes[r] = size;
    }
}

/* Add to each row of ``y`` a share of ``rows`` and an offset that all its elements have in common.
 *
 * ``shares`` are standard deviations: of the offset, of the offset in units of ``sizes`` and again absolute, and of the
 * share of the rows; ``levels`` holds as many for each of the four. Returns whether all of ``y`` is finite.
 */
WIDER EXPORT int driftscope_move_rows(double *y, const double *rows, int64_t count, int64_t length,
                                      const int8_t *levels, const double *shares, const double *sizes) {
    int64_t largest = 0;
    for (int64_t r = 0; r < count; r++) {
        double *restrict to = y + r * length;
        const double *restrict from = rows + r * length;
        double by = (levels[r] + 0.5) * shares[0];
        if (sizes) by += (levels[count + r] + 0.5) * sizes[r] * shares[1] + (levels[2 * count + r] + 0.5) * shares[2];
        by = fabs(by) < INFINITY ? by : 0.0;
        double share = (levels[3 * count + r] + 0.5) * shares[3];
        for (int64_t i = 0; i < length; i++) {
            to[i] = (to[i] + from[i] * share) + by;
            int64_t size = bits_of_size(to[i]);
            largest = size > largest ? size : largest;
        }
    }
    return largest < INFINITE;
}
