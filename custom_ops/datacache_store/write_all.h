// Writing that ends when all is written.

#ifndef CUSTOM_OPS_DATACACHE_STORE_WRITE_ALL_H_
#define CUSTOM_OPS_DATACACHE_STORE_WRITE_ALL_H_

#include <sys/uio.h>

#include <cstdint>
#include <vector>

namespace datacache {

// pwritev that goes on after short writes; false with errno on failure.
bool WriteAll(int fd, std::vector<iovec> parts, int64_t offset);

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_WRITE_ALL_H_
