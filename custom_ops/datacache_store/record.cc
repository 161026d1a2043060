#include "custom_ops/datacache_store/record.h"

#include <cstring>

#include "custom_ops/datacache_store/crc32c.h"

namespace datacache {
namespace {

// Whether the four bytes behind `data` are its crc.
bool HasCrc(const char* data, size_t n) {
  uint32_t crc;
  std::memcpy(&crc, data + n, sizeof(crc));
  return crc == MaskedCrc32c(Crc32c(0, data, n));
}

}  // namespace

int64_t DataLength(std::string_view record) {
  int64_t length;
  if (record.size() < kHeader || !HasCrc(record.data(), sizeof(length))) return -1;
  std::memcpy(&length, record.data(), sizeof(length));
  return length < 0 ? -1 : length;
}

bool Unframe(std::string* record) {
  if (record->size() < kFraming) return false;
  const size_t n = record->size() - kFraming;
  if (DataLength(*record) != static_cast<int64_t>(n) || !HasCrc(&(*record)[kHeader], n)) return false;
  record->resize(kHeader + n);
  record->erase(0, kHeader);
  return true;
}

}  // namespace datacache
