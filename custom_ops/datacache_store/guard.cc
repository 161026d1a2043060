#include "custom_ops/datacache_store/guard.h"

#include <signal.h>

#include <mutex>

namespace datacache {
namespace {

struct sigaction previous;

void OnBusError(int signal, siginfo_t* info, void* context) {
  if (sigjmp_buf* landing = Landing()) siglongjmp(*landing, 1);
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    sigaction(signal, &previous, nullptr);  // and the instruction that failed does so again
    if (info->si_code <= 0) raise(signal);  // unless a process has sent it
  }
}

}  // namespace

sigjmp_buf*& Landing() {
  thread_local sigjmp_buf* landing = nullptr;
  return landing;
}

void CatchBusErrors() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    // Not blocked while it is handled: siglongjmp() leaves the mask as it is.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGBUS, &action, &previous);
  });
}

}  // namespace datacache
