/* Every entry point of the native library under every instruction set that the processor has, on hostile numbers.
 *
 * Each case runs once per instruction set and must give the same bits, NaNs included where the library writes them;
 * sums, products of matrices and replays must also give those of the few plain lines of reference.h. Inputs end, or
 * begin, at a page that nobody may touch; results lie between guard bytes; the caller's rounding mode and flush-to-zero
 * are set to others now and then, and must be found again. Printed: the instruction sets, and per entry point how many
 * cases ran and a digest of what came out, which is that of every machine. The exit code is 1 if anything differed.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <unistd.h>

#include "hostile.h"
#include "reference.h"

int driftscope_use(int);
int64_t driftscope_state_size(void);
void driftscope_rows(int, int, int, const void *, const void *, int64_t, int64_t, int64_t, void *);
void driftscope_total(int, const void *, int64_t, void *);
void driftscope_part(int, int, const void *, const void *, int64_t, void *);
void driftscope_join(int, int, void *, int64_t, int64_t, int64_t, void *);
void driftscope_layer_norm(int, const void *, const double *, const double *, double, int64_t, int64_t, void *);
int driftscope_matmul(int, const void *, const void *, void *, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
void driftscope_dots(int, int, const void *, const void *, int64_t, int64_t, int64_t, void *);
int driftscope_products(int, const void *, const void *, const void *, void *, int64_t, int64_t, int64_t, int64_t,
                        int64_t, int64_t, int64_t, int64_t, int64_t);
int driftscope_replay(int, int64_t, const int64_t *, const int64_t *, const int8_t *, const void *, int64_t,
                      const void *, void *);
void driftscope_elements(int, const float *, int64_t, float *);
void driftscope_softmax(const float *, int64_t, int64_t, int, float *);
void driftscope_norm_rows(const float *, int64_t, int64_t, const float *, const float *, double, float *, float *,
                          float *);
int driftscope_attention(const float *, const float *, const float *, const float *, int64_t, int64_t, int64_t, int64_t,
                         int64_t, int64_t, float *, float *);

enum { GUARD = 64, LEVELS = 3 };

/* --- one case under every instruction set ------------------------------------------------------------------------ */

static char results[LEVELS][PAGES];
static int best, wrong;
static const char *entry;
static int64_t cases;
static uint64_t digest;

static void begin(const char *name) { entry = name, cases = 0, digest = 0xcbf29ce484222325; }
static void end(void) {
    printf("%s: %lld cases, %016llx\n", entry, (long long)cases, (unsigned long long)digest), fflush(stdout);
}

static void report(const char *what, int level, int64_t at) {
    if (++wrong <= 40)
        printf("WRONG %s, instruction set %d: case %lld, %s at byte %lld\n", entry, level, (long long)cases, what,
               (long long)at);
}

/* The result of one instruction set goes here; `bytes` of it are looked at afterwards. */
static void *fresh(int level, size_t bytes) {
    if (bytes + 2 * GUARD > PAGES) exit(2);
    memset(results[level], 0xa5, bytes + 2 * GUARD);
    return results[level] + GUARD;
}

static void look(int level, size_t bytes) {
    for (size_t i = 0; i < GUARD; i++)
        if ((results[level][i] & 0xff) != 0xa5 || (results[level][GUARD + bytes + i] & 0xff) != 0xa5)
            report("written beside the result", level, (int64_t)i);
    if (level && memcmp(results[level], results[0], bytes + GUARD)) {
        size_t at = 0;
        while (results[level][GUARD + at] == results[0][GUARD + at])
            at++;
        report("other bits", level, (int64_t)at);
    }
}

/* NaNs that a processor makes have its own sign and payload: one NaN stands for all. */
static void one_nan(int kind, void *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double *d = (double *)x + i;
        float *s = (float *)x + i;
        if (kind == 0 && *d != *d) memset(d, 0x7f, sizeof *d);
        if (kind == 1 && *s != *s) memset(s, 0x7f, sizeof *s);
    }
}

static void keep(size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        digest = (digest ^ (results[0][GUARD + i] & 0xff)) * 0x100000001b3;
    cases++;
}

static void equal(const void *expected, size_t bytes) {
    if (memcmp(expected, results[0] + GUARD, bytes)) report("not what the reference gives", 0, 0);
}

#define EVERY(bytes, ...)                                                                                              \
    for (int level = 0; level <= best; level++) {                                                                      \
        void *out = fresh(level, bytes);                                                                               \
        unsigned mode = strange_mode(), found;                                                                         \
        driftscope_use(level);                                                                                         \
        __VA_ARGS__;                                                                                                   \
        found = restored_mode(mode);                                                                                   \
        if (found) report("rounding mode or flush-to-zero not as before", level, 0);                                   \
        look(level, bytes);                                                                                            \
    }                                                                                                                  \
    keep(bytes)

#if defined(__x86_64__)
#include <immintrin.h>
static unsigned usual;
static unsigned strange_mode(void) {
    static unsigned turn;
    const unsigned modes[4] = {0x1f80, 0x1f80 | 0x8040, 0x1f80 | 0x6000, 0x1f80 | 0x2000 | 0x8000};
    usual = _mm_getcsr() & ~0x3fu;
    /* The order of the instruction sets is three long: four modes meet all of them. */
    unsigned mode = modes[turn++ % 4];
    _mm_setcsr(mode);
    return mode;
}
static unsigned restored_mode(unsigned mode) {
    unsigned found = _mm_getcsr() & ~0x3fu;
    _mm_setcsr(usual);
    return found != mode;
}
#else
static unsigned strange_mode(void) { return 0; }
static unsigned restored_mode(unsigned mode) { return mode; }
#endif

/* --- the entry points -------------------------------------------------------------------------------------------- */

static int64_t length(int64_t i) {
    static const int64_t longer[] = {255,  256,  257,  511,  513,  1000, 1023, 1024,
                                     2047, 2048, 2049, 2111, 4095, 4096, 4097, 6200,
                                     8191, 8192, 8193, 9999};
    return i <= 200 ? i : longer[below(20)];
}

static void sums(int64_t rounds) {
    static const char *names[] = {"sum", "mean", "dot", "norm", "variance"};
    for (int op = 0; op < 5; op++) {
        begin(names[op]);
        for (int64_t round = 0; round < rounds; round++)
            for (int64_t i = 0; i < 240; i++) {
                int kind = (int)below(4), to = below(3) ? kind : (int)below(4), rows = 1 + (int)below(3),
                    law = below(3) ? (int)below(LAWS) : FULL;
                int64_t n = length(i), size = LAYOUTS[to].bits / 8, from = LAYOUTS[kind].bits / 8;
                char *x = numbers(0, kind, rows * n, law),
                     *y = op == 2 ? numbers(1, kind, rows * n, (int)below(LAWS)) : x;
                EVERY((size_t)(rows * size), driftscope_rows(op, kind, to, x, y, rows, n, op == 4, out));
                for (int r = 0; r < rows && (op == 0 || op == 2); r++) {
                    uint64_t expected = op ? exact_dot(kind, to, x + r * n * from, y + r * n * from, n)
                                           : exact_sum(kind, to, x + r * n * from, n);
                    if (memcmp(&expected, results[0] + GUARD + r * size, (size_t)size))
                        report("not what the reference gives", 0, r);
                }
            }
        end();
    }
}

static void parts(int64_t rounds) {
    int64_t state = driftscope_state_size();
    char *memory = malloc((size_t)(3 * state));
    begin("total, parts and joins");
    for (int64_t i = 0; i < 240 * rounds; i++) {
        int kind = (int)below(4), op = (int)below(5);
        int64_t n = length(i % 240), size = LAYOUTS[kind].bits / 8, a = below(n + 1), b = a + below(n - a + 1);
        char *x = numbers(0, kind, n, (int)below(LAWS)), *y = numbers(1, kind, n, (int)below(LAWS));
        EVERY((size_t)(2 * size), {
            driftscope_total(kind, x, n, out);
            driftscope_part(op, kind, x, y, a, memory);
            driftscope_part(op, kind, x + a * size, y + a * size, b - a, memory + state);
            driftscope_part(op, kind, x + b * size, y + b * size, n - b, memory + 2 * state);
            driftscope_join(op, kind, memory, 3, n, 1, (char *)out + size);
        });
    }
    end();
    free(memory);
}

static void dots_and_norms(int64_t rounds) {
    begin("dots");
    for (int64_t i = 0; i < 120 * rounds; i++) {
        int kind = (int)below(4), law = (int)below(LAWS);
        int64_t n = below(70), rows = 1 + below(4), columns = 1 + below(4), size = LAYOUTS[kind].bits / 8;
        void *a = numbers(0, kind, rows * n, law), *b = numbers(1, kind, columns * n, (int)below(LAWS));
        EVERY((size_t)(rows * columns * size), driftscope_dots(kind, kind, a, b, rows, columns, n, out));
    }
    end();
    begin("layer norm");
    for (int64_t i = 0; i < 240 * rounds; i++) {
        int kind = (int)below(4), some = (int)below(4);
        int64_t n = length(i % 240), rows = 1 + below(3), size = LAYOUTS[kind].bits / 8;
        void *x = numbers(0, kind, rows * n, (int)below(LAWS));
        double eps = below(2) ? 1e-5 : 0, *weight = numbers(1, 0, n, ORDINARY),
               *bias = numbers(2, 0, n, below(9) ? ORDINARY : SPECIAL);
        EVERY((size_t)(rows * n * size), {
            driftscope_layer_norm(kind, x, some & 1 ? weight : NULL, some & 2 ? bias : NULL, eps, rows, n, out);
            if (kind < 2) one_nan(kind, out, rows * n);
        });
    }
    end();
}

static void products(int64_t rounds) {
    begin("products of matrices");
    for (int64_t i = 0; i < 160 * rounds; i++) {
        int kind = (int)below(2), biased = (int)below(2), turned = (int)below(3),
            law = below(2) ? ORDINARY : (int)below(LAWS);
        int64_t size = kind ? 4 : 8, large = i % 40 == 0, batch = large ? 1 : 1 + below(2);
        int64_t rows = below(large ? 130 : 40), depth = below(large ? 600 : 60), columns = below(large ? 300 : 80);
        int64_t spare = below(3), a_row = depth + spare, b_row = turned == 1 ? 1 : columns + spare,
                b_column = turned == 1 ? depth + spare : 1;
        if (turned == 2) b_row = 2 * columns + 1, b_column = 2;
        int64_t many_a = rows * a_row,
                many_b = 1 + (depth ? depth - 1 : 0) * b_row + (columns ? columns - 1 : 0) * b_column;
        while ((batch * many_a > 60000 || batch * many_b > 60000 || batch * rows * columns > 60000) && rows > 1)
            rows /= 2, many_a = rows * a_row;
        if (batch * many_b > 120000) continue;
        char *a = numbers(0, kind, batch * many_a, law), *b = numbers(1, kind, batch * many_b, law),
             *bias = numbers(2, kind, columns, law);
        if (!biased) bias = NULL;
        EVERY((size_t)(batch * rows * columns * size), {
            int failed = batch == 1 && !bias
                             ? driftscope_matmul(kind, a, b, out, rows, depth, columns, a_row, b_row, b_column)
                             : driftscope_products(kind, a, b, bias, out, batch, rows, depth, columns, many_a, a_row,
                                                   many_b, b_row, b_column);
            if (failed) exit(2);
            one_nan(kind, out, batch * rows * columns);
        });
        void *expected = room(3, (size_t)(batch * rows * columns * size));
        for (int64_t k = 0; k < batch; k++)
            chained_product(kind, a + k * many_a * size, b + k * many_b * size, bias,
                            (char *)expected + k * rows * columns * size, rows, depth, columns, a_row, b_row, b_column);
        one_nan(kind, expected, batch * rows * columns);
        equal(expected, (size_t)(batch * rows * columns * size));
    }
    end();
}

static void replays(int64_t rounds) {
    begin("replays");
    for (int64_t i = 0; i < 200 * rounds; i++) {
        int kind = (int)below(2), weighted = (int)below(2), fused = weighted && below(2),
            law = below(2) ? ORDINARY : (int)below(LAWS);
        int64_t n = 1 + (i % 200 < 120 ? i % 200 : below(400)), rows = 1 + below(40), size = kind ? 4 : 8;
        int64_t *left = malloc(sizeof(int64_t) * (size_t)n), *right = malloc(sizeof(int64_t) * (size_t)n);
        int8_t *unrounded = malloc((size_t)n);
        random_tree(n, left, right, draw);
        for (int64_t k = 0; k < n; k++)
            unrounded[k] = (int8_t)(draw() & 1);
        void *x = numbers(0, kind, rows * n, law), *w = weighted ? numbers(1, kind, n, law) : NULL;
        EVERY((size_t)(rows * size), {
            if (driftscope_replay(kind, n, left, right, fused ? unrounded : NULL, x, rows, w, out)) exit(2);
            one_nan(kind, out, rows);
        });
        void *expected = room(3, (size_t)(rows * size));
        for (int64_t r = 0; r < rows; r++)
            added_by_tree(kind, n, left, right, fused ? unrounded : NULL, (char *)x + r * n * size, w,
                          (char *)expected + r * size);
        one_nan(kind, expected, rows);
        equal(expected, (size_t)(rows * size));
        free(left), free(right), free(unrounded);
    }
    end();
}

static void layers(int64_t rounds) {
    static const char *names[] = {"sigmoid", "tanh", "silu", "gelu", "gelu of tanh"};
    for (int function = 0; function < 5; function++) {
        begin(names[function]);
        for (int64_t i = 0; i < 240 * rounds; i++) {
            int64_t n = length(i % 240);
            float *x = numbers(0, 1, n, below(2) ? ORDINARY : (int)below(LAWS));
            EVERY(sizeof(float) * (size_t)n, driftscope_elements(function, x, n, out));
        }
        end();
    }
    begin("softmax");
    for (int64_t i = 0; i < 240 * rounds; i++) {
        int64_t n = length(i % 240), rows = 1 + below(3), masked = below(2);
        float *x = numbers(0, 1, rows * n, below(2) ? ORDINARY : (int)below(LAWS));
        for (int64_t k = 0; k < rows * n && i % 3 == 0; k++)
            if (below(3) == 0) x[k] = -INFINITY;
        EVERY(sizeof(float) * (size_t)(rows * n), driftscope_softmax(x, rows, n, (int)masked, out));
    }
    end();
    begin("layer norm of floats");
    for (int64_t i = 0; i < 240 * rounds; i++) {
        int64_t n = length(i % 240), rows = 1 + below(3), some = below(4);
        float *x = numbers(0, 1, rows * n, below(2) ? ORDINARY : (int)below(LAWS)),
              *weight = numbers(1, 1, n, ORDINARY), *bias = numbers(2, 1, n, ORDINARY);
        size_t bytes = sizeof(float) * (size_t)(rows * n + 2 * rows);
        EVERY(bytes, {
            float *y = out, *mean = y + rows * n;
            driftscope_norm_rows(x, rows, n, some & 1 ? weight : NULL, some & 2 ? bias : NULL, 1e-5, y, mean,
                                 mean + rows);
            one_nan(1, mean, 2 * rows);
        });
    }
    end();
}

static void attention(int64_t rounds) {
    begin("attention");
    for (int64_t i = 0; i < 60 * rounds; i++) {
        int64_t queries = i % 20 ? 1 + below(20) : 90 + below(20), keys = 1 + below(40), depth = 1 + below(20),
                width = 1 + below(40);
        int64_t masked = below(3), law = below(4) ? ORDINARY : below(LAWS);
        float *q = numbers(0, 1, queries * depth, (int)law), *k = numbers(1, 1, keys * depth, (int)law),
              *v = numbers(2, 1, keys * width, (int)law);
        float *mask = numbers(3, 1, queries * keys, ORDINARY);
        for (int64_t j = 0; j < queries * keys; j++)
            if (below(3) == 0) mask[j] = -INFINITY;
        int64_t mask_row = masked == 1 ? keys : 1, mask_column = masked == 1 ? 1 : queries;
        EVERY(sizeof(float) * (size_t)(queries * width + 2 * queries), {
            float *y = out;
            if (driftscope_attention(q, k, v, masked ? mask : NULL, mask_row, mask_column, queries, keys, depth, width,
                                     y, y + queries * width))
                exit(2);
            one_nan(1, y, queries * width + 2 * queries);
        });
    }
    end();
}

int main(int count, char **given) {
    int64_t rounds = count > 1 ? atoll(given[1]) : 1;
    drawn = count > 2 ? (uint64_t)atoll(given[2]) : 20261;
    best = driftscope_use(LEVELS - 1);
    printf("instruction sets:");
    for (int level = 0; level <= best; level++)
        printf(" %s", level == 0 ? "plain" : level == 1 ? "avx2" : "avx512");
    puts("");
    open_pages();
    sums(rounds);
    parts(rounds);
    dots_and_norms(rounds);
    products(rounds);
    replays(rounds);
    layers(rounds);
    attention(rounds);
    printf("%d wrong\n", wrong);
    fflush(stdout);
    /* Alone on a machine that was started for this: off with it. */
    if (getpid() == 1) sleep(1), reboot(RB_POWER_OFF);
    return wrong != 0;
}
