// A record of a TFRecord file: its length (8 bytes), the length's crc (4), data, the data's crc (4).

#ifndef CUSTOM_OPS_DATACACHE_STORE_RECORD_H_
#define CUSTOM_OPS_DATACACHE_STORE_RECORD_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace datacache {

constexpr uint64_t kHeader = 12, kFraming = 16;  // bytes before a record's data; before and after

// The length of the data that the record at the start of `record` holds, or -1: it is damaged, fewer than 12 of
// its bytes are there, or it says that there are 2^63 bytes and more.
int64_t DataLength(std::string_view record);

// Takes the framing off one record. False, and `record` is what it was, where anything of it is damaged.
bool Unframe(std::string* record);

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_RECORD_H_
