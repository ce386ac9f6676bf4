#include "core/text/graphemes.hpp"

#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

using enum ClusterClass;

// The state of a cluster whose characters are added one by one.
class Cluster {
 public:
  explicit Cluster(std::uint32_t code_point) { add(properties(code_point)); }

  // Adds the next character; false, and nothing is added, when it begins another cluster.
  bool take(std::uint32_t code_point) {
    const std::uint8_t next = properties(code_point);
    if (!joins(class_of(next))) return false;
    add(next);
    return true;
  }

 private:
  static std::uint8_t properties(std::uint32_t code_point) {
    using namespace grapheme_tables;
    const std::uint32_t block = kIndex[code_point >> kBlockBits];
    return kBlocks[(block << kBlockBits) + (code_point & ((1u << kBlockBits) - 1))];
  }
  static ClusterClass class_of(std::uint8_t bits) {
    return static_cast<ClusterClass>(bits & grapheme_tables::kClassBits);
  }
  static bool is_control(ClusterClass c) { return c == kCr || c == kLf || c == kControl; }

  // The rules GB3 to GB999 of Unicode's annex 29, in their order.
  bool joins(ClusterClass next) const {
    if (last_ == kCr && next == kLf) return true;
    if (is_control(last_) || is_control(next)) return false;
    if (last_ == kL && (next == kL || next == kV || next == kLv || next == kLvt)) return true;
    if ((last_ == kLv || last_ == kV) && (next == kV || next == kT)) return true;
    if ((last_ == kLvt || last_ == kT) && next == kT) return true;
    if (next == kExtend || next == kZwj || next == kSpacingMark || last_ == kPrepend) return true;
    if (next == kConsonant) return linked_ == Linked::kYes;
    if (next == kPictograph) return last_ == kZwj && pictograph_;
    return last_ == kRegional && next == kRegional && odd_regionals_;
  }

  void add(std::uint8_t bits) {
    last_ = class_of(bits);
    if (last_ == kConsonant) {
      linked_ = Linked::kPossible;
    } else if ((bits & grapheme_tables::kBetweenLinked) == 0) {
      linked_ = Linked::kNo;
    } else if ((bits & grapheme_tables::kLinker) != 0 && linked_ != Linked::kNo) {
      linked_ = Linked::kYes;
    }
    // A pictograph, then marks, then a joiner.
    pictograph_ = last_ == kPictograph || (pictograph_ && !after_zwj_ && last_ == kExtend) ||
                  (pictograph_ && !after_zwj_ && last_ == kZwj);
    after_zwj_ = last_ == kZwj;
    odd_regionals_ = last_ == kRegional && !odd_regionals_;
  }

  enum class Linked : std::uint8_t { kNo, kPossible, kYes };

  ClusterClass last_ = kAny;
  Linked linked_ = Linked::kNo;
  bool pictograph_ = false, after_zwj_ = false, odd_regionals_ = false;
};

}  // namespace

std::size_t grapheme_size(const std::uint8_t* text, std::size_t size) {
  CodePoint at = decode_utf8(text);
  Cluster cluster(at.value);
  std::size_t end = at.size;
  while (end < size) {
    at = decode_utf8(text + end);
    if (!cluster.take(at.value)) break;
    end += at.size;
  }
  return end;
}

}  // namespace tokpack
