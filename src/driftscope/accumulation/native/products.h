/* A product of matrices in its fixed order, for the other files of the library. */
#ifndef DRIFTSCOPE_PRODUCTS_H
#define DRIFTSCOPE_PRODUCTS_H

#include <stdint.h>

typedef struct {
    const void *a, *b, *bias; /* bias: one element per column, added to the finished chain; or null */
    void *c;
    int64_t rows, depth, columns;
    int64_t a_row;           /* elements between rows of a; its columns are adjacent */
    int64_t b_row, b_column; /* elements between rows and between columns of b */
} product;

/* kind: 0 for double, 1 for float. Returns 0, or 1 when there is no memory to work in. */
int fused_multiply(int kind, const product *p);

#endif
