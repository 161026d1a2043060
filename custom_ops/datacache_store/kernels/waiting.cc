#include "custom_ops/datacache_store/kernels/waiting.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "custom_ops/datacache_store/clock.h"
#include "tensorflow/core/platform/logging.h"

namespace datacache {
namespace {

constexpr int64_t kSecond = 1000000;
constexpr int64_t kFirst = 5 * kSecond;

struct Wait {
  std::string what;
  int64_t begin;
  int64_t next = kFirst;  // the duration at which it is told
};

// Of this process. One thread looks at all: those that wait cannot. Lines are written without the lock: who
// reads them may be slow.
class Waits {
 public:
  // A forked child has neither the thread nor, perhaps, a free lock of its parent's: it gets its own.
  static Waits& All() {
    static std::atomic<Waits*> all{nullptr};
    Waits* found = all.load();
    if (found != nullptr && found->process_ == getpid()) return *found;
    Waits* const own = new Waits;
    if (!all.compare_exchange_strong(found, own)) {  // another thread was first
      delete own;
      return *found;
    }
    own->Start();
    return *own;
  }

  int64_t Begin(const std::string& what) {
    std::lock_guard<std::mutex> guard(mutex_);
    waits_[++last_] = {what, Microseconds()};
    return last_;
  }

  void End(int64_t number) {
    const Wait wait = Take(number);
    if (wait.next == kFirst) return;
    LOG(WARNING) << "datacache: the wait for " << wait.what << " is over after "
                 << (Microseconds() - wait.begin) / kSecond << " s";
  }

 private:
  void Start() {
    std::thread([this] { Watch(); }).detach();
  }

  Wait Take(int64_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    return std::move(waits_.extract(number).mapped());
  }

  // What is to be told of now, and for how long it has been waited for.
  std::vector<std::pair<std::string, int64_t>> Due() {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<std::pair<std::string, int64_t>> due;
    for (auto& [number, wait] : waits_) {
      const int64_t waited = Microseconds() - wait.begin;
      if (waited < wait.next) continue;
      wait.next *= 2;
      due.emplace_back(wait.what, waited);
    }
    return due;
  }

  void Watch() {
    while (true) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      for (const auto& [what, waited] : Due()) {
        LOG(WARNING) << "datacache: still waiting for " << what << ", for " << waited / kSecond
                     << " s. Does it answer?";
      }
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::map<int64_t, Wait> waits_;
  int64_t last_ = 0;
};

}  // namespace

Waiting::Waiting(const std::string& what) : number_(Waits::All().Begin(what)) {}

Waiting::~Waiting() { Waits::All().End(number_); }

}  // namespace datacache
