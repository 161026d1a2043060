// Reading a mapped file that somebody may truncate: an answer instead of SIGBUS.

#ifndef CUSTOM_OPS_DATACACHE_STORE_GUARD_H_
#define CUSTOM_OPS_DATACACHE_STORE_GUARD_H_

#include <setjmp.h>

#include <atomic>

namespace datacache {

// Where this thread goes on after SIGBUS; null outside Guarded().
sigjmp_buf*& Landing();

// Handles SIGBUS from now on where Guarded() reads; all others go to the handler that was there before.
void CatchBusErrors();

// Runs `read`, which must own nothing that has a destructor; false if a page that it touched is not there.
// Some 10 ns. Not to be nested.
template <class Read>
bool Guarded(const Read& read) {
  sigjmp_buf here;
  volatile bool done = false;
  if (sigsetjmp(here, 0) == 0) {
    Landing() = &here;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    read();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    done = true;
  }
  Landing() = nullptr;
  return done;
}

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_GUARD_H_
