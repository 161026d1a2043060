#include "custom_ops/datacache_store/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <mutex>
#include <set>

namespace datacache {
namespace {

// Descriptors of all locks of this process. Nobody in a forked child uses them: it has one thread, which
// was forking and not locking.
struct Descriptors {
  std::mutex mutex;
  std::set<int> open;
};

Descriptors& All() {
  static Descriptors* all = [] {
    auto* made = new Descriptors;
    pthread_atfork([] { All().mutex.lock(); }, [] { All().mutex.unlock(); },
                   [] {
                     for (const int fd : All().open) close(fd);
                     All().open.clear();
                     All().mutex.unlock();
                   });
    return made;
  }();
  return *all;
}

}  // namespace

FileLock::FileLock(const std::string& path) {
  {
    std::lock_guard<std::mutex> guard(All().mutex);  // no fork between opening and noting it
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) return;
    All().open.insert(fd_);
  }
  while (flock(fd_, LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    Close();
    return;
  }
}

FileLock::~FileLock() {
  if (held()) Close();
}

void FileLock::Close() {
  std::lock_guard<std::mutex> guard(All().mutex);
  All().open.erase(fd_);
  close(fd_);
  fd_ = -1;
}

}  // namespace datacache
