/* The additions of a tree on ABREAST rows at a time; included once per instruction set and format.
 *
 * The includer defines NAME, TARGET, REAL, VECTOR, LANES, LOAD, STORE, SPREAD, ADD, MULTIPLY and FMA.
 */

/* Rows first .. first + rows as [term][row], zeros beyond the last row. */
TARGET static void NAME(turn)(const REAL *x, int64_t n, int64_t rows, REAL *turned) {
    for (int64_t start = 0; start < n; start += 16) {
        int64_t stop = start + 16 < n ? start + 16 : n;
        for (int64_t k = start; k < stop; k++)
            for (int64_t r = 0; r < ABREAST; r++) turned[k * ABREAST + r] = r < rows ? x[r * n + k] : (REAL)0;
    }
}

TARGET static void NAME(add)(const order *o, const REAL *x, int64_t rows, const REAL *weights, REAL *terms, REAL *sums,
                             REAL *out) {
    NAME(turn)(x, o->n, rows, terms);
    if (weights)
        for (int64_t k = 0; k < o->n; k++)
            for (int64_t r = 0; r < ABREAST; r += LANES)
                STORE(sums + k * ABREAST + r, MULTIPLY(LOAD(terms + k * ABREAST + r), SPREAD(weights[k])));
    for (int64_t k = 0; k < o->n - 1; k++) {
        REAL *into = sums + (int64_t)o->into[k] * ABREAST, *of = sums + (int64_t)o->of[k] * ABREAST;
        if (o->way[k] == PLAINLY) {
            for (int64_t r = 0; r < ABREAST; r += LANES) STORE(into + r, ADD(LOAD(into + r), LOAD(of + r)));
            continue;
        }
        /* The product of one of the two enters unrounded; the other one is a sum, or a rounded product. */
        int64_t product = o->way[k] == OF_UNROUNDED ? o->of[k] : o->into[k];
        const REAL *term = terms + product * ABREAST, *sum = o->way[k] == OF_UNROUNDED ? into : of;
        VECTOR weight = SPREAD(weights[product]);
        for (int64_t r = 0; r < ABREAST; r += LANES) STORE(into + r, FMA(LOAD(term + r), weight, LOAD(sum + r)));
    }
    memcpy(out, sums + (int64_t)o->last * ABREAST, sizeof(REAL) * (size_t)rows);
}

#undef NAME
#undef REAL
#undef VECTOR
#undef LANES
#undef LOAD
#undef STORE
#undef SPREAD
#undef ADD
#undef MULTIPLY
#undef FMA
