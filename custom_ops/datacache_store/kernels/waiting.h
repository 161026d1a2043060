// A storage that does not answer is named, not waited for in silence.

#ifndef CUSTOM_OPS_DATACACHE_STORE_KERNELS_WAITING_H_
#define CUSTOM_OPS_DATACACHE_STORE_KERNELS_WAITING_H_

#include <cstdint>
#include <string>

namespace datacache {

// While it lives, a thread waits for `what`. A warning says so after 5 seconds, then after 10, 20, 40 ..., and
// another one when the wait is over. Nothing is given up: a mount that hangs may come back, as one on NFS does.
class Waiting {
 public:
  explicit Waiting(const std::string& what);
  ~Waiting();
  Waiting(const Waiting&) = delete;

 private:
  const int64_t number_;
};

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_KERNELS_WAITING_H_
