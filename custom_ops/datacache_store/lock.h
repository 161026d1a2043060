// flock() that belongs to its holder alone.

#ifndef CUSTOM_OPS_DATACACHE_STORE_LOCK_H_
#define CUSTOM_OPS_DATACACHE_STORE_LOCK_H_

#include <string>

namespace datacache {

// Locks a file or directory against other processes and other threads while it lives. The kernel frees the
// lock when the process dies, even if a child that it forked lives on: children close what they inherit.
class FileLock {
 public:
  explicit FileLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  // False where the file cannot be opened, or its file system has no locks (any more: NFS).
  bool held() const { return fd_ >= 0; }

 private:
  void Close();

  int fd_;
};

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_LOCK_H_
