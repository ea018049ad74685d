/* One tile of a product of matrices, ROWS x 2 vectors of outputs; included once per instruction set and format.
 *
 * Every output is its own chain of fused multiply-adds over k = 0, 1, 2, ... from +0: lanes lie across outputs, never
 * along k. Between two blocks of k the chain waits in `c`, which has the format of the chain, so nothing is rounded by
 * waiting. The includer defines NAME, TARGET, REAL, VECTOR, LANES, ROWS, LOAD, STORE, SPREAD and FMA.
 */

TARGET static void NAME(tile)(const REAL *a, int64_t a_row, const REAL *b, REAL *c, int64_t c_row, int64_t depth,
                              int first, const REAL *bias) {
    VECTOR sum[ROWS][2];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) sum[r][v] = first ? SPREAD(0) : LOAD(c + r * c_row + v * LANES);
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; k++) {
        VECTOR left = LOAD(b), right = LOAD(b + LANES);
        b += 2 * LANES;
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            VECTOR factor = SPREAD(a[r * a_row + k]);
            sum[r][0] = FMA(factor, left, sum[r][0]);
            sum[r][1] = FMA(factor, right, sum[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            if (bias) sum[r][v] = sum[r][v] + LOAD(bias + v * LANES);
            STORE(c + r * c_row + v * LANES, sum[r][v]);
        }
}

typedef REAL NAME(four) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));
#define FOUR NAME(four)

/* Columns [start, start + 2 * LANES) of `depth` rows of b side by side, zeros beyond the last column. */
TARGET static void NAME(pack)(const REAL *b, int64_t row, int64_t column, int64_t depth, int64_t columns, REAL *packed) {
    if (column == 1 && columns == 2 * LANES) {
        for (int64_t k = 0; k < depth; k++, packed += 2 * LANES, b += row) {
            STORE(packed, LOAD(b));
            STORE(packed + LANES, LOAD(b + LANES));
        }
        return;
    }
    if (row == 1 && columns == 2 * LANES && LANES > 1) {
        /* A transposed b, as in q k^T: squares of four by four are turned in registers. */
        int64_t k = 0;
        for (; k + 4 <= depth; k += 4)
            for (int64_t j = 0; j < 2 * LANES; j += 4) {
                const REAL *from = b + k + j * column;
                FOUR r0 = *(const FOUR *)from, r1 = *(const FOUR *)(from + column);
                FOUR r2 = *(const FOUR *)(from + 2 * column), r3 = *(const FOUR *)(from + 3 * column);
                FOUR a = MIXED(r0, r1, 0, 4, 1, 5), c = MIXED(r0, r1, 2, 6, 3, 7);
                FOUR d = MIXED(r2, r3, 0, 4, 1, 5), e = MIXED(r2, r3, 2, 6, 3, 7);
                REAL *to = packed + k * 2 * LANES + j;
                *(FOUR *)to = MIXED(a, d, 0, 1, 4, 5);
                *(FOUR *)(to + 2 * LANES) = MIXED(a, d, 2, 3, 6, 7);
                *(FOUR *)(to + 4 * LANES) = MIXED(c, e, 0, 1, 4, 5);
                *(FOUR *)(to + 6 * LANES) = MIXED(c, e, 2, 3, 6, 7);
            }
        for (; k < depth; k++)
            for (int64_t j = 0; j < 2 * LANES; j++) packed[k * 2 * LANES + j] = b[k + j * column];
        return;
    }
    if (columns < 2 * LANES) memset(packed, 0, sizeof(REAL) * (size_t)(depth * 2 * LANES));
    for (int64_t start = 0; start < depth; start += 16)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = start; k < depth && k < start + 16; k++)
                packed[k * 2 * LANES + j] = b[k * row + j * column];
}

/* A tile that reaches over the edge of the result: computed beside it, and the inside copied. */
TARGET static void NAME(edge)(const REAL *a, int64_t a_row, const REAL *b, REAL *c, int64_t c_row, int64_t depth,
                              int first, const REAL *bias, int64_t rows, int64_t columns) {
    REAL inside[ROWS * 2 * LANES] = {0}, beside[2 * LANES] = {0};
    if (bias) memcpy(beside, bias, sizeof(REAL) * (size_t)columns);
    if (!first)
        for (int64_t r = 0; r < rows; r++)
            memcpy(inside + r * 2 * LANES, c + r * c_row, sizeof(REAL) * (size_t)columns);
    NAME(tile)(a, a_row, b, inside, 2 * LANES, depth, first, bias ? beside : NULL);
    for (int64_t r = 0; r < rows; r++) memcpy(c + r * c_row, inside + r * 2 * LANES, sizeof(REAL) * (size_t)columns);
}

/* Few rows, or no terms: b is read once, as it lies, eight of its rows at a time. */
TARGET static void NAME(thin)(const product *p) {
    const REAL *a = p->a, *b = p->b;
    REAL *c = p->c;
    for (int64_t i = 0; i < p->rows * p->columns; i++) c[i] = 0;
    for (int64_t start = 0; start < p->depth; start += 8) {
        int64_t count = p->depth - start < 8 ? p->depth - start : 8;
        const REAL *lines = b + start * p->b_row;
        for (int64_t i = 0; i < p->rows; i++) {
            const REAL *factors = a + i * p->a_row + start;
            REAL *line = c + i * p->columns;
            int64_t j = 0;
            if (count == 8)
                for (; j + LANES <= p->columns; j += LANES) {
                    VECTOR sum = LOAD(line + j);
#pragma GCC unroll 8
                    for (int k = 0; k < 8; k++) sum = FMA(SPREAD(factors[k]), LOAD(lines + k * p->b_row + j), sum);
                    STORE(line + j, sum);
                }
            for (; j < p->columns; j++)
                for (int64_t k = 0; k < count; k++) line[j] = SCALAR_FMA(factors[k], lines[k * p->b_row + j], line[j]);
        }
    }
    const REAL *bias = p->bias;
    for (int64_t i = 0; bias && i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++) c[i * p->columns + j] += bias[j];
}

/* Some rows of the result, in a block of columns and of k: one packed panel after the other, which stays near while
 * the rows go by. */
TARGET static void NAME(strip)(const product *p, const REAL *packed, REAL *repeated, int64_t start, int64_t depth,
                               int64_t left, int64_t width, int64_t top, int64_t lines) {
    const REAL *a = (const REAL *)p->a + top * p->a_row + start;
    int64_t whole = lines / ROWS * ROWS, rest = lines - whole;
    /* Rows beyond the edge repeat the last one; nobody reads what becomes of them. */
    for (int64_t r = 0; rest && r < ROWS; r++)
        memcpy(repeated + r * depth, a + (whole + (r < rest ? r : rest - 1)) * p->a_row, sizeof(REAL) * (size_t)depth);
    for (int64_t j = 0; j < width; j += 2 * LANES) {
        int64_t columns = width - j < 2 * LANES ? width - j : 2 * LANES;
        const REAL *panel = packed + j * depth;
        const REAL *bias = p->bias && start + depth == p->depth ? (const REAL *)p->bias + left + j : NULL;
        REAL *out = (REAL *)p->c + top * p->columns + left + j;
        for (int64_t i = 0; i < whole; i += ROWS)
            if (columns == 2 * LANES)
                NAME(tile)(a + i * p->a_row, p->a_row, panel, out + i * p->columns, p->columns, depth, start == 0, bias);
            else
                NAME(edge)(a + i * p->a_row, p->a_row, panel, out + i * p->columns, p->columns, depth, start == 0, bias,
                           ROWS, columns);
        if (rest)
            NAME(edge)(repeated, depth, panel, out + whole * p->columns, p->columns, depth, start == 0, bias, rest,
                       columns);
    }
}

/* c = a b. `packed` holds DEPTH x WIDTH elements and a few to spare. */
TARGET static void NAME(multiply)(const product *p, REAL *packed) {
    const REAL *b = p->b;
    REAL repeated[ROWS * DEPTH];
    if (p->depth == 0 || (p->rows <= 4 && p->b_column == 1)) {
        NAME(thin)(p);
        return;
    }
    for (int64_t left = 0; left < p->columns; left += WIDTH) {
        int64_t width = p->columns - left < WIDTH ? p->columns - left : WIDTH;
        for (int64_t start = 0; start < p->depth; start += DEPTH) {
            int64_t depth = p->depth - start < DEPTH ? p->depth - start : DEPTH;
            for (int64_t j = 0; j < width; j += 2 * LANES)
                NAME(pack)(b + start * p->b_row + (left + j) * p->b_column, p->b_row, p->b_column, depth,
                           width - j < 2 * LANES ? width - j : 2 * LANES, packed + j * depth);
            for (int64_t top = 0; top < p->rows; top += LINES) {
                int64_t lines = p->rows - top < LINES ? p->rows - top : LINES;
                NAME(strip)(p, packed, repeated, start, depth, left, width, top, lines);
            }
        }
    }
}

#undef FOUR
#undef NAME
#undef REAL
#undef VECTOR
#undef LANES
#undef LOAD
#undef STORE
#undef SPREAD
#undef FMA
#undef SCALAR_FMA
