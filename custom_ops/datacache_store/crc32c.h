// CRC-32C (Castagnoli), the checksum of TFRecord files and of iSCSI.

#ifndef CUSTOM_OPS_DATACACHE_STORE_CRC32C_H_
#define CUSTOM_OPS_DATACACHE_STORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace datacache {

// Continues the checksum `crc` (0 at the start) over n bytes.
uint32_t Crc32c(uint32_t crc, const void* data, size_t n);

// The same by table, for processors without the instruction and as the reference of the test.
uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t n);

// What TFRecord files store: a checksum of data that itself contains checksums would be weak.
inline uint32_t MaskedCrc32c(uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_CRC32C_H_
