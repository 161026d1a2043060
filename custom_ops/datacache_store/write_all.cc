#include "custom_ops/datacache_store/write_all.h"

#include <errno.h>

#include <algorithm>
#include <cstddef>

namespace datacache {

bool WriteAll(int fd, std::vector<iovec> parts, int64_t offset) {
  size_t first = 0, left = 0;  // a part, and how much of it and what follows has been written
  while (true) {
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first == parts.size()) return true;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
    left = 0;
    const int count = static_cast<int>(std::min<size_t>(parts.size() - first, 512));
    const ssize_t written = pwritev(fd, &parts[first], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    offset += written;
    left = written;
  }
}

}  // namespace datacache
