// JSON strings by blocks of 32 bytes: runs between escapes are copied with overlapping stores.
// Included by each instruction set's file inside its own namespace, after a struct `Isa` of its
// operations on such a block: specials() has a bit for each quote, backslash and control character,
// high() says whether a byte is above 0x7F.

template <bool kCopy>
const std::uint8_t* walk(const std::uint8_t* in, const std::uint8_t* end, std::uint8_t** out_end,
                         bool* high) {
  std::uint8_t* out = kCopy ? *out_end : nullptr;
  Isa::Bytes seen = Isa::zero();
  // More than 64 bytes must be left: after an escape at the end of the block another 32 bytes are
  // loaded.
  while (end - in > 64) {
    const Isa::Bytes bytes = Isa::load(in);
    seen = Isa::either(seen, bytes);
    std::uint64_t marks = Isa::specials(bytes);
    if constexpr (kCopy) Isa::store(out, bytes);
    std::uint32_t done = 0;  // bytes from `in` on that are done
    bool moved = false;      // `in` is already past Unicode escapes
    while (marks != 0) {
      const auto at = static_cast<std::uint32_t>(std::countr_zero(marks));
      if constexpr (kCopy) out += at - done;
      if (in[at] == '"') {
        *high |= Isa::high(seen);
        if constexpr (kCopy) *out_end = out;
        return in + at + 1;
      }
      if (in[at] != '\\') return nullptr;
      done = at + 2;
      if (const std::uint8_t plain = kUnescaped[in[at + 1]]; plain != 0) {
        if constexpr (kCopy) *out++ = plain;
      } else {
        if (in[at + 1] != 'u') return nullptr;
        in += at;
        do {
          if constexpr (kCopy) {
            in = copy_unicode_escape(in + 2, end, &out);
          } else {
            in = skip_unicode_escape(in + 2, end);
          }
          if (in == nullptr) return nullptr;
        } while (unicode_escape_follows(in, end));
        moved = true;
        break;
      }
      if constexpr (kCopy) Isa::store(out, Isa::load(in + done));
      marks &= ~0ULL << done;
    }
    if (moved) continue;
    if (done <= 32) {
      if constexpr (kCopy) out += 32 - done;
      in += 32;
    } else {
      in += done;
    }
  }
  // The scalar kernel does the rest, which is too short for loads of 32 bytes.
  *high |= Isa::high(seen);
  const StringKernels& scalar = string_kernels(Level::kScalar);
  if constexpr (kCopy) {
    *out_end = out;
    return scalar.copy(in, end, out_end, high);
  } else {
    return scalar.skip(in, end, high);
  }
}

const std::uint8_t* skip(const std::uint8_t* in, const std::uint8_t* end, bool* high) {
  return walk<false>(in, end, nullptr, high);
}
