"""The places of the Horovod 0.28.1 sdist that we change, each with its reason."""

from __future__ import annotations

import dataclasses
import pathlib


class EditError(RuntimeError):
    """An edit does not fit the source it was written for."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """One replacement in one file of the sdist.

    Args:
      name: short identifier, unique in EDITS.
      file: path inside the sdist.
      expected: text that must occur exactly once in `file`; None stands for the whole file.
      replacement: what takes its place.
      reason: what goes wrong without the edit.
    """

    name: str
    file: str
    expected: str | None
    replacement: str
    reason: str

    def edited(self, text: str) -> str:
        """Returns `text`, the content of `file`, with the edit made.

        Raises:
          EditError: `expected` does not occur exactly once.
        """
        if self.expected is None:
            return self.replacement
        occurrences = text.count(self.expected)
        if occurrences != 1:
            raise EditError(
                f"edit '{self.name}': the expected text occurs {occurrences} times in {self.file}, "
                "must be exactly once; the source is not the pinned sdist, or another edit "
                "overlaps: correct the edit in tools/horovod/edits.py"
            )
        return text.replace(self.expected, self.replacement)

    def apply(self, root: pathlib.Path) -> None:
        """Makes the edit below `root`, the unpacked sdist.

        Raises:
          EditError: the file is missing or its text is not what the edit expects.
        """
        path = root / self.file
        if not path.is_file():
            raise EditError(f"edit '{self.name}': the sdist has no file {self.file}")
        path.write_text(self.edited(path.read_text(encoding="utf-8")), encoding="utf-8")


EDITS = (
    Edit(
        name="no-xla-ops",
        file="horovod/tensorflow/xla_mpi_ops.cc",
        expected=None,
        replacement="// XLA kernels left out.\n",
        reason="Includes XLA headers that TensorFlow moved in 2.16, so nothing compiles; its "
        "kernels (HOROVOD_ENABLE_XLA_OPS) are not used.",
    ),
    Edit(
        name="process-set-interface",
        file="horovod/common/gloo/gloo_context.cc",
        expected="""\
  attr device_attr;
  device_attr.iface = gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
""",
        replacement="""\
  gloo_iface_ = global_context.gloo_iface_;
  attr device_attr;
  device_attr.iface = gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
""",
        reason="Process sets ignore HOROVOD_GLOO_IFACE and bind to what the host name resolves "
        "to: 127.0.1.1 on a stock Debian, so that other nodes get 'connection refused'.",
    ),
    Edit(
        name="stall-inspector",
        file="horovod/common/gloo/gloo_controller.cc",
        expected="  global_ranks_.reserve(size_);\n",
        replacement="  global_ranks_.resize(size_);\n",
        reason="With Gloo the vector of ranks keeps size 0, so the stall inspector finds nobody "
        "missing: a rank that does not call hangs all others without a message.",
    ),
    Edit(
        name="process-set-stall",
        file="horovod/common/operations.cc",
        expected="    should_shutdown |= response_list.shutdown();\n",
        replacement="""\
    if (process_set_id != 0 && response_list.shutdown()) {
      // Only the members know. Closing the connections tells the others.
      throw std::runtime_error("process set " + std::to_string(process_set_id) +
                               " was shut down by its stall inspector");
    }
    should_shutdown |= response_list.shutdown();
""",
        reason="After a stall in a process set its members would wait for an agreement with "
        "ranks outside it, who do not know of the shutdown, until the Gloo timeout.",
    ),
    Edit(
        name="dead-peer-declaration",
        file="horovod/common/process_set.h",
        expected="  int32_t RegisterProcessSet(std::vector<int> global_ranks = {});\n",
        replacement="""\
  // Finalize and remove all process sets but the global one without the
  // agreement of the other processes.
  void AbandonExtraProcessSets(const Status& status);

  int32_t RegisterProcessSet(std::vector<int> global_ranks = {});
""",
        reason="Declares the function of the next edit.",
    ),
    Edit(
        name="dead-peer-finalize",
        file="horovod/common/process_set.cc",
        expected="""\
template <class Context>
void ProcessSetTable::Finalize_(const Context& context, const Status& status) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  std::vector<int32_t> ids_copy(ids_.begin(), ids_.end());
  for (auto id : ids_copy) {
    if (id == 0) {
      // We will still need the global process set to negotiate removing any
      // other process set.
      continue;
    }
    LOG(TRACE, Get(0).controller->GetRank())
        << "Finalizing ProcessSetTable, process set id: " << id;
    MarkProcessSetForRemoval(id);
    // Block until all processes have been able to finalize and deregister
    // this process set.
    while (true) {
      InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      if (ProcessSetHasJustBeenRemoved()) {
        break;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
""",
        replacement="""\
void ProcessSetTable::AbandonExtraProcessSets(const Status& status) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  id_to_be_removed_ = NO_PENDING_REMOVAL;
  for (auto id : Ids()) {
    if (id != 0) {
      Get(id).Finalize(status);
      DeregisterProcessSet(id);
    }
  }
}

template <class Context>
void ProcessSetTable::Finalize_(const Context& context, const Status& status) {
  std::lock_guard<std::recursive_mutex> guard(mutex);
  std::vector<int32_t> ids_copy(ids_.begin(), ids_.end());
  for (auto id : ids_copy) {
    if (id == 0) {
      // We will still need the global process set to negotiate removing any
      // other process set.
      continue;
    }
    LOG(TRACE, Get(0).controller->GetRank())
        << "Finalizing ProcessSetTable, process set id: " << id;
    MarkProcessSetForRemoval(id);
    // Block until all processes have been able to finalize and deregister
    // this process set.
    try {
      while (true) {
        InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
        if (ProcessSetHasJustBeenRemoved()) {
          break;
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      }
    } catch (const std::exception& ex) {
      LOG(ERROR) << "Horovod could not agree on removing process sets: "
                 << ex.what();
      AbandonExtraProcessSets(status);
      break;
    }
  }
""",
        reason="Removing a process set asks all peers; when one died, the exception reaches the "
        "top of the background thread and std::terminate aborts every survivor.",
    ),
    Edit(
        name="dead-peer-loop",
        file="horovod/common/operations.cc",
        expected="""\
        << "Horovod background loop uncaught exception: " << ex.what();
""",
        replacement="""\
        << "Horovod background loop uncaught exception: " << ex.what();
    state.shut_down = true;
    // A peer is lost: do not wait for its agreement.
    state.process_set_table.AbandonExtraProcessSets(SHUT_DOWN_ERROR);
""",
        reason="After a lost peer the survivors ask each other while some of them are still in "
        "another collective: no answer until the Gloo timeout. Close at once instead.",
    ),
    Edit(
        name="gcc13-stdexcept",
        file="horovod/common/common.h",
        expected="#include <memory>\n#include <string>\n",
        replacement="#include <memory>\n#include <stdexcept>\n#include <string>\n",
        reason="std::logic_error is used without its header, which GCC 13 no longer includes "
        "by the way (Horovod's master: ff4ca09d).",
    ),
    Edit(
        name="gcc13-string",
        file="horovod/common/group_table.h",
        expected="#include <queue>\n#include <unordered_map>\n",
        replacement="#include <queue>\n#include <string>\n#include <unordered_map>\n",
        reason="The same for std::string.",
    ),
    Edit(
        name="gpu-stream-handle",
        file="horovod/tensorflow/mpi_ops.cc",
        expected="""\
// Forward declaration of AsGpuStreamValue
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
""",
        replacement="""\
#include "tensorflow/compiler/xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(
      stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
""",
        reason="GPU build: TensorFlow 2.20 no longer exports AsGpuStreamValue, so the library "
        "would not load; the stream's platform handle is the same value.",
    ),
    Edit(
        name="one-gloo",
        file="CMakeLists.txt",
        expected="    add_subdirectory(third_party/gloo)\n",
        replacement="    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)\n",
        reason="Gloo is compiled twice, for C++11 and for C++17; TensorFlow links the second.",
    ),
)
