/* The calling thread's rounding mode and flush-to-zero, set aside during a call; the instruction set in use. */
#ifndef DRIFTSCOPE_ARITHMETIC_H
#define DRIFTSCOPE_ARITHMETIC_H

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define ON_X86 1
typedef unsigned int arithmetic;
static inline arithmetic set_arithmetic(void) {
    arithmetic before = _mm_getcsr();
    _mm_setcsr(0x1f80); /* nearest even, subnormals kept, nothing trapped */
    return before;
}
static inline void restore_arithmetic(arithmetic before) { _mm_setcsr(before); }
/* Whether an operation was rounded since that was forgotten. */
enum { INEXACT = 0x20 };
static inline int rounded(void) { return (_mm_getcsr() & INEXACT) != 0; }
static inline void forget_rounding(void) {
    if (rounded()) _mm_setcsr(_mm_getcsr() & ~(unsigned int)INEXACT); /* writing is slow */
}
#else
#include <fenv.h>
#define ON_X86 0
typedef fenv_t arithmetic;
static inline arithmetic set_arithmetic(void) {
    arithmetic before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}
static inline void restore_arithmetic(arithmetic before) { fesetenv(&before); }
static inline int rounded(void) { return fetestexcept(FE_INEXACT) != 0; }
static inline void forget_rounding(void) { feclearexcept(FE_INEXACT); }
#endif

#define EXPORT __attribute__((visibility("default")))

enum { PLAIN = 0, AVX2 = 1, AVX512 = 2 };

int driftscope_level(void);

#endif
