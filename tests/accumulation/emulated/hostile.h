/* Numbers that are hard to add, in memory that ends where they do. */
#ifndef HOSTILE_H
#define HOSTILE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "reference.h"

enum { PAGES = 1 << 20, PAGE = 1 << 14, INPUTS = 4 };
enum { ORDINARY, WIDE, SUBNORMAL, CANCELLING, SPECIAL, ZEROS, POWERS, HUGE_ONES, EDGES, RAW, STEPS, FULL, LAWS };

static uint64_t drawn;
static uint64_t draw(void) {
    drawn += 0x9e3779b97f4a7c15;
    uint64_t z = drawn;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static int64_t below(int64_t n) { return (int64_t)(draw() % (uint64_t)n); }

/* --- memory with an end ------------------------------------------------------------------------------------------ */

static char *pages[INPUTS];

static void open_pages(void) {
    for (int i = 0; i < INPUTS; i++) {
        char *all = mmap(NULL, PAGES + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (all == MAP_FAILED || mprotect(all + PAGE, PAGES, PROT_READ | PROT_WRITE)) exit(2);
        pages[i] = all + PAGE;
    }
}

/* Room for so many bytes: at the very end of what may be read, or at its beginning. */
static void *room(int which, size_t bytes) {
    if (bytes > PAGES) exit(2);
    return draw() & 1 ? pages[which] : pages[which] + PAGES - bytes;
}

/* --- numbers ----------------------------------------------------------------------------------------------------- */

/* What the numbers of one array share: an exponent field, how far below it the few small ones lie, and so on. */
typedef struct {
    int about, span, rarity, rise, negative;
    uint64_t fraction; /* or 0: every one draws its own */
} shared;

/* The bits of one number of a format: a law says how its exponent is drawn. */
static uint64_t number(const layout *f, int law, shared all, int64_t i, uint64_t before) {
    int about = all.about;
    int top = (1 << f->exponent) - 1;
    uint64_t sign = (draw() & 1) << (f->bits - 1), fraction = draw() & ((1ull << f->fraction) - 1);
    int64_t field = about + below(6) - 3;
    switch (law) {
    case WIDE: field = below(top); break;
    case SUBNORMAL: field = below(8) ? 0 : below(3); break;
    case CANCELLING:
        if (i & 1) return before ^ 1ull << (f->bits - 1) ^ (uint64_t)(below(4) == 0);
        break;
    case SPECIAL:
        if (below(24) == 0) field = top, fraction = below(3) ? 0 : fraction;
        break;
    case ZEROS: return below(40) ? (about & 1) && below(2) ? 0 : 1ull << (f->bits - 1) : sign | fraction;
    case POWERS: fraction = 0, field = about + below(2 * f->fraction + 40) - f->fraction - 20; break;
    case HUGE_ONES: field = top - 1 - below(3); break;
    case EDGES: field = about - (below(3) ? below(4) : f->fraction + 30 + below(40)); break;
    case RAW: return draw() & (~0ull >> (64 - f->bits));
    case STEPS: field = about - i % 90; break;
    case FULL: /* one sign, every bit set, a few far below: sums as large and last bits as low as they can be */
        field = about - (below(all.rarity) == 0 ? all.span : 0) - (i < 64 ? all.rise : 0);
        sign = (uint64_t)all.negative << (f->bits - 1);
        if (all.fraction) fraction = all.fraction & ((1ull << f->fraction) - 1);
        fraction = all.fraction || below(9) == 0 ? fraction | 1 : (1ull << f->fraction) - 1;
        break;
    default: break;
    }
    if (field < 0) field = 0;
    if (field > top - (law != SPECIAL)) field = top - (law != SPECIAL);
    return sign | (uint64_t)field << f->fraction | fraction;
}

static void *numbers(int which, int kind, int64_t n, int law) {
    const layout *f = &LAYOUTS[kind];
    int top = (1 << f->exponent) - 1, about = below(3) ? top / 2 + (int)below(9) - 4 : (int)below(top);
    shared all = {about,          (int)below(2 * f->fraction + 20),
                  1 << below(12), below(3) ? 0 : (int)below(12),
                  (int)below(2),  below(2) ? draw() : 0};
    int bytes = f->bits / 8;
    char *at = room(which, (size_t)(n * bytes));
    uint64_t bits = 0;
    for (int64_t i = 0; i < n; i++) {
        bits = number(f, law, all, i, bits);
        memcpy(at + i * bytes, &bits, (size_t)bytes);
    }
    return at;
}

#endif
