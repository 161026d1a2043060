// Arithmetic on denormals, which TensorFlow's threads flush to zero.

#ifndef CUSTOM_OPS_MSTOPK_DENORMALS_H_
#define CUSTOM_OPS_MSTOPK_DENORMALS_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace mstopk {

// Makes this thread keep denormals while in scope, or CPU and GPU would disagree about the smallest
// numbers.
class ScopedDenormals {
 public:
#if defined(__SSE2__)
  ScopedDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0x8040u); }
  ~ScopedDenormals() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_;
#endif
};

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_DENORMALS_H_
