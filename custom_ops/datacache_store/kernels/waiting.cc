#include "custom_ops/datacache_store/kernels/waiting.h"

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

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

// Of this process. One thread looks at all: those that wait cannot.
class Waits {
 public:
  static Waits& All() {
    static Waits* all = new Waits;
    return *all;
  }

  int64_t Begin(const std::string& what) {
    std::lock_guard<std::mutex> guard(mutex_);
    waits_[++last_] = {what, Microseconds()};
    return last_;
  }

  void End(int64_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    const auto wait = waits_.find(number);
    if (wait->second.next > kFirst) {
      LOG(WARNING) << "datacache: " << wait->second.what << " answered after "
                   << (Microseconds() - wait->second.begin) / kSecond << " s";
    }
    waits_.erase(wait);
  }

 private:
  Waits() {
    std::thread([this] { Watch(); }).detach();
  }

  void Watch() {
    while (true) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      std::lock_guard<std::mutex> guard(mutex_);
      for (auto& [number, wait] : waits_) {
        const int64_t waited = Microseconds() - wait.begin;
        if (waited < wait.next) continue;
        wait.next *= 2;
        LOG(WARNING) << "datacache: still waiting for " << wait.what << ", for " << waited / kSecond
                     << " s. Does the storage answer?";
      }
    }
  }

  std::mutex mutex_;
  std::map<int64_t, Wait> waits_;
  int64_t last_ = 0;
};

}  // namespace

Waiting::Waiting(const std::string& what) : number_(Waits::All().Begin(what)) {}

Waiting::~Waiting() { Waits::All().End(number_); }

}  // namespace datacache
