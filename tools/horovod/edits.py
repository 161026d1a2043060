"""The places of the Horovod 0.28.1 sdist that we change, each with its reason."""

from edit import Edit

_OUTPUT = "    // Allgather output will have shape of:\n"
_COUNTED = """\
    auto elements = total_entry_dimension_size * single_slice_shape.num_elements();
    if (elements > INT32_MAX) {
      return Status::InvalidArgument("An all-gather of " + std::to_string(elements) +
                                     " elements; at most 2^31 - 1 are counted. Gather slices, "
                                     "one after the other.");
    }
"""

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
      // Only the members know: agree with everybody in the next cycle.
      state.shut_down = true;
      continue;
    }
    should_shutdown |= response_list.shutdown();
""",
        reason="After a stall in a process set its members stop, while the ranks outside know "
        "nothing of it: each side waits for the other until Gloo's timeout (30 s), then aborts.",
    ),
    Edit(
        name="dead-peer",
        file="horovod/common/process_set.cc",
        expected="""\
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
  bool peer_lost = false;
  for (auto id : ids_copy) {
    if (id == 0) {
      // We will still need the global process set to negotiate removing any
      // other process set.
      continue;
    }
    LOG(TRACE, Get(0).controller->GetRank())
        << "Finalizing ProcessSetTable, process set id: " << id;
    if (!peer_lost) {
      try {
        MarkProcessSetForRemoval(id);
        // Block until all processes have been able to finalize and deregister
        // this process set.
        while (true) {
          InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
          if (ProcessSetHasJustBeenRemoved()) {
            break;
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        continue;
      } catch (const std::exception& ex) {
        LOG(ERROR) << "Removing process sets without the others' agreement: "
                   << ex.what();
        id_to_be_removed_ = NO_PENDING_REMOVAL;
        peer_lost = true;
      }
    }
    Get(id).Finalize(status);
    DeregisterProcessSet(id);
  }
""",
        reason="Removing a process set asks all peers; when one is dead, the exception reaches "
        "the top of the background thread and std::terminate aborts every survivor.",
    ),
    Edit(
        name="idle-queue",
        file="horovod/common/tensor_queue.h",
        expected="  void RemoveJoinTensor();\n\nprotected:\n",
        replacement="""\
  void RemoveJoinTensor();

  // Whether no tensor of this process waits for its operation.
  bool Empty() const {
    std::lock_guard<std::mutex> guard(mutex_);
    return tensor_table_.empty();
  }

protected:
""",
        reason="For the next edit.",
    ),
    Edit(
        name="idle-cycles",
        file="horovod/common/operations.cc",
        expected="""\
    std::this_thread::sleep_for(sleep_duration);
  }
  state.last_cycle_start = std::chrono::steady_clock::now();
""",
        replacement="""\
    std::this_thread::sleep_for(sleep_duration);
  }
  // What can begin waits in the queues of all processes: where one is empty, there is nothing to
  // negotiate. All the same every tenth cycle: a peer may be lost, or shut down.
  auto& process_sets = state.process_set_table;
  for (int cycle = 1; cycle < 10 && process_sets.Ids().size() == 1 &&
                      process_sets.Get(0).tensor_queue.Empty() && !state.shut_down;
       ++cycle) {
    std::this_thread::sleep_for(std::chrono::microseconds(
        long(state.parameter_manager.CycleTimeMs() * 1000.)));
  }
  state.last_cycle_start = std::chrono::steady_clock::now();
""",
        reason="A process with nothing to communicate negotiates with all others every millisecond all the "
        "same, for a seventh of a core or more.",
    ),
    Edit(
        name="timeline-writer",
        file="horovod/common/timeline.cc",
        expected="    std::this_thread::yield();\n",
        replacement="    std::this_thread::sleep_for(std::chrono::milliseconds(10));\n",
        reason="With HOROVOD_TIMELINE, the thread that writes it takes a whole core while it has nothing to "
        "write.",
    ),
    Edit(
        name="exchange-in-pairs",
        file="third_party/gloo/gloo/alltoallv.cc",
        expected="""\
  for (int i = 1; i < worldSize; i++) {
    int sendRank = (myRank + i) % worldSize;
    int recvRank = (myRank + worldSize - i) % worldSize;
    in->send(
        sendRank, slot, inOffsetPerRank[sendRank], inLengthPerRank[sendRank]);
    out->recv(
        recvRank, slot, outOffsetPerRank[recvRank], outLengthPerRank[recvRank]);
  }

  for (int i = 1; i < worldSize; i++) {
    in->waitSend(opts.timeout);
    out->waitRecv(opts.timeout);
  }
""",
        replacement="""\
  // Rounds of a tournament: in each round everybody exchanges with one partner, both ways at once; with an
  // odd number of ranks one pauses. So a port gets one message at a time, from a link that sends no other.
  // Of 2^n ranks, those of a node meet each other in the same rounds, and in others those of one other node.
  const int even = worldSize + worldSize % 2, rounds = even - 1;
  const bool powerOfTwo = (worldSize & (worldSize - 1)) == 0;
  std::vector<int> partners(rounds);
  std::vector<std::unique_ptr<transport::UnboundBuffer>> from(rounds);
  size_t messages = 1;
  for (int round = 0; round < rounds; round++) {
    int partner = (round + rounds - myRank % rounds) % rounds;
    if (powerOfTwo) partner = myRank ^ (round + 1);
    else if (myRank == even - 1) partner = round * (even / 2) % rounds;
    else if (partner == myRank) partner = even - 1;
    partners[round] = partner;
    messages += partner < worldSize && inLengthPerRank[partner] + outLengthPerRank[partner] > 0;
  }
  // Who has received a round's message begins another round; of small messages several are under way.
  const size_t message = std::max(in->size, out->size) / messages + 1;
  const int window = int(std::max<size_t>(1, std::min<size_t>(rounds, (128 << 10) / message)));
  size_t sends = 0;
  const auto begin = [&](int round) {
    if (round >= rounds || partners[round] >= worldSize) return;
    const int partner = partners[round];
    if (outLengthPerRank[partner] > 0) {  // received apart from others: a shared buffer mixes them up
      from[round] = context->createUnboundBuffer(
          static_cast<char*>(out->ptr) + outOffsetPerRank[partner], outLengthPerRank[partner]);
      from[round]->recv(partner, slot, 0, outLengthPerRank[partner]);
    }
    if (inLengthPerRank[partner] > 0) {
      in->send(partner, slot, inOffsetPerRank[partner], inLengthPerRank[partner]);
      sends++;
    }
  };
  for (int round = 0; round < window; round++) begin(round);
  for (int round = 0; round < rounds; round++) {
    if (from[round]) from[round]->waitRecv(opts.timeout);
    begin(round + window);
  }
  while (sends-- > 0) in->waitSend(opts.timeout);
""",
        reason="Messages of all ranks reach a port at once, which loses what it cannot hold; and two ranks "
        "exchange their parts one after the other, since the later one says that it is ready to receive "
        "behind the data that it sends.",
    ),
    Edit(
        name="gather-in-pieces",
        file="third_party/gloo/gloo/allgatherv.cc",
        expected="""\
  for (auto i = 0; i < context->size - 1; i++) {
    const size_t sendIndex = (baseIndex - i) % context->size;
    const size_t recvIndex = (baseIndex - i - 1) % context->size;

    if (i == 0) {
      out->send(sendRank, slot, byteOffsets[sendIndex], byteCounts[sendIndex]);
      out->recv(recvRank, slot, byteOffsets[recvIndex], byteCounts[recvIndex]);
      continue;
    }

    // Wait for previous operations to complete before kicking off new ones.
    out->waitSend(opts.timeout);
    out->waitRecv(opts.timeout);
    out->send(sendRank, slot, byteOffsets[sendIndex], byteCounts[sendIndex]);
    out->recv(recvRank, slot, byteOffsets[recvIndex], byteCounts[recvIndex]);
  }

  // Wait for final operations to complete.
  out->waitSend(opts.timeout);
  out->waitRecv(opts.timeout);
""",
        replacement="""\
  // The blocks go round the ring in pieces: one is passed on while the next is received. Their receiver is
  // ready for all from the beginning.
  const size_t pieces = 8, smallest = 64 << 10;
  const auto eachPiece = [&](size_t block, auto call) {
    const size_t bytes = byteCounts[block];
    const size_t most = std::max(smallest, (bytes + pieces - 1) / pieces);
    for (size_t at = 0; at < bytes; at += most) {
      call(byteOffsets[block] + at, std::min(most, bytes - at));
    }
  };
  size_t sends = 0;
  for (auto i = 1; i < context->size; i++) {
    eachPiece((baseIndex - i) % context->size, [&](size_t offset, size_t bytes) {
      out->recv(recvRank, slot, offset, bytes);
    });
  }
  for (auto i = 0; i < context->size - 1; i++) {
    eachPiece((baseIndex - i) % context->size, [&](size_t offset, size_t bytes) {
      if (i > 0) out->waitRecv(opts.timeout);  // this piece: they come in order
      out->send(sendRank, slot, offset, bytes);
      sends++;
    });
  }
  eachPiece((baseIndex + 1) % context->size, [&](size_t, size_t) { out->waitRecv(opts.timeout); });
  while (sends-- > 0) out->waitSend(opts.timeout);
""",
        reason="A block is passed on only when all of it has come, and its receiver says that it is ready "
        "only when it has passed on the one before: between two blocks the link is idle. And two ranks "
        "exchange one after the other, as there.",
    ),
    Edit(
        name="large-gathers",
        file="horovod/common/ops/gloo_operations.cc",
        expected="    int buffer_offset = displcmnts[gloo_context.ctx->rank] * element_size;\n",
        replacement="""\
    int64_t buffer_offset = (int64_t)displcmnts[gloo_context.ctx->rank] * element_size;
""",
        reason="The block of a rank that begins beyond 2 GiB of what is gathered is written elsewhere: "
        "garbage on all ranks with status OK, or a crash.",
    ),
    Edit(
        name="large-gathers-nccl",
        file="horovod/common/ops/nccl_operations.cc",
        expected="  auto element_size = (int)DataType_Size(first_entry.tensor->dtype());\n",
        replacement="  auto element_size = (int64_t)DataType_Size(first_entry.tensor->dtype());\n",
        reason="The same where ranks' blocks differ; where they are alike, NCCL is given a wrong size for "
        "blocks of 2 GiB and more.",
    ),
    Edit(
        name="countable-gathers",
        file="horovod/common/ops/collective_operations.cc",
        expected=_OUTPUT,
        replacement=_COUNTED + _OUTPUT,
        reason="Blocks are counted in elements by int: what begins beyond 2^31 of them is written before "
        "the output. An error now, on all ranks.",
    ),
    Edit(
        name="countable-gathers-nccl",
        file="horovod/common/ops/nccl_operations.cc",
        expected=_OUTPUT,
        replacement=_COUNTED + _OUTPUT,
        reason="The same.",
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
        name="one-gloo",
        file="CMakeLists.txt",
        expected="    add_subdirectory(third_party/gloo)\n",
        replacement="    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)\n",
        reason="Build time: Gloo is compiled twice, for C++11 and C++17; TensorFlow's plug-in "
        "links the second.",
    ),
    Edit(
        name="no-debug-information",
        file="CMakeLists.txt",
        expected='string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO '
        '"${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")\n',
        replacement='set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")\n',
        reason="Build time: a quarter of the compilation, and 14 of the wheel's 15 MB.",
    ),
)
