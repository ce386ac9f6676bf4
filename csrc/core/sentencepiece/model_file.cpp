#include "core/sentencepiece/model_file.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/sentencepiece/piece_normalizer.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMaxPieceSize = 7999;  // in bytes; the library refuses longer ones

// Longer ones would make the time to read a hostile model quadratic.
constexpr std::size_t kMaxNativePiece = 512;

[[noreturn]] void refuse(const std::string& reason) { throw std::invalid_argument(reason); }

// One field of a protobuf message: its number, and its value by wire type.
struct Field {
  std::uint32_t number = 0;
  std::uint32_t wire = 0;
  std::uint64_t value = 0;                   // wire types 0, 1, 5
  std::span<const std::uint8_t> bytes = {};  // wire type 2
};

// Reads the fields of one message one after the other.
class Message {
 public:
  Message(std::span<const std::uint8_t> data, const char* name) : data_(data), name_(name) {}

  bool next(Field* field) {
    if (at_ == data_.size()) return false;
    const std::uint64_t tag = varint();
    if (tag >> 3 == 0 || tag >> 32 != 0) broken("has a field without a number");
    *field = {static_cast<std::uint32_t>(tag >> 3), static_cast<std::uint32_t>(tag & 7)};
    switch (field->wire) {
      case 0:
        field->value = varint();
        break;
      case 1:
        field->value = fixed(8);
        break;
      case 2: {
        const std::uint64_t size = varint();
        if (size > data_.size() - at_) broken("is cut");
        field->bytes = data_.subspan(at_, static_cast<std::size_t>(size));
        at_ += static_cast<std::size_t>(size);
        break;
      }
      case 5:
        field->value = fixed(4);
        break;
      default:
        broken("has a field of an unknown kind");
    }
    return true;
  }

  bool boolean(const Field& field) const {
    expect(field, 0);
    return field.value != 0;
  }
  std::uint64_t number(const Field& field) const {
    expect(field, 0);
    return field.value;
  }
  float real(const Field& field) const {
    expect(field, 5);
    return std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
  }
  std::string text(const Field& field) const {
    expect(field, 2);
    return {field.bytes.begin(), field.bytes.end()};
  }
  std::span<const std::uint8_t> message(const Field& field) const {
    expect(field, 2);
    return field.bytes;
  }

 private:
  [[noreturn]] void broken(const char* what) const {
    refuse(std::string(name_) + " " + what + " at byte " + std::to_string(at_) + " of it");
  }
  void expect(const Field& field, std::uint32_t wire) const {
    if (field.wire != wire) {
      refuse(std::string(name_) + ": field " + std::to_string(field.number) +
             " is of another kind than it should be");
    }
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == data_.size()) broken("is cut");
      const std::uint8_t byte = data_[at_++];
      value |= std::uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    broken("has a number of more than ten bytes");
  }
  std::uint64_t fixed(unsigned size) {
    if (size > data_.size() - at_) broken("is cut");
    std::uint64_t value = 0;
    for (unsigned i = 0; i < size; ++i) value |= std::uint64_t{data_[at_++]} << (8 * i);
    return value;
  }

  std::span<const std::uint8_t> data_;
  const char* name_;
  std::size_t at_ = 0;
};

Piece parse_piece(std::span<const std::uint8_t> data) {
  Piece piece;
  Message message(data, "a piece");
  for (Field field; message.next(&field);) {
    if (field.number == 1) piece.text = message.text(field);
    if (field.number == 2) piece.score = message.real(field);
    if (field.number == 3) {
      const std::uint64_t type = message.number(field);
      if (type < 1 || type > 6) refuse("a piece is of the unknown type " + std::to_string(type));
      piece.type = static_cast<PieceType>(type);
    }
  }
  return piece;
}

void parse_trainer(std::span<const std::uint8_t> data, PieceModelFile* model) {
  Message message(data, "trainer_spec");
  for (Field field; message.next(&field);) {
    switch (field.number) {
      case 3: {
        const std::uint64_t type = message.number(field);
        if (type < 1 || type > 4)
          refuse("its model is of the unknown type " + std::to_string(type));
        model->type = static_cast<PieceModelType>(type);
        break;
      }
      case 24:
        model->whitespace_as_suffix = message.boolean(field);
        break;
      case 35:
        model->byte_fallback = message.boolean(field);
        break;
      case 44:
        model->unknown_surface = message.text(field);
        break;
      case 46:
        model->begin_piece = message.text(field);
        break;
      case 47:
        model->end_piece = message.text(field);
        break;
      default:
        break;
    }
  }
}

void parse_normalizer(std::span<const std::uint8_t> data, PieceModelFile* model) {
  Message message(data, "normalizer_spec");
  for (Field field; message.next(&field);) {
    switch (field.number) {
      case 2:
        model->charsmap = message.text(field);
        break;
      case 3:
        model->dummy_prefix = message.boolean(field);
        break;
      case 4:
        model->remove_extra_whitespace = message.boolean(field);
        break;
      case 5:
        model->escape_whitespace = message.boolean(field);
        break;
      default:
        break;
    }
  }
}

bool parse_denormalizer(std::span<const std::uint8_t> data) {
  bool rules = false;
  Message message(data, "denormalizer_spec");
  for (Field field; message.next(&field);) {
    if (field.number == 2) rules = !message.text(field).empty();
  }
  return rules;
}

// The byte that a byte piece such as <0x0A> stands for; -1 when it is none.
int byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'A' || c > 'F')) return -1;
    value = value * 16 + (digit ? c - '0' : c - 'A' + 10);
  }
  return value;
}

bool is_reserved(PieceType type) {
  return type == PieceType::kUnknown || type == PieceType::kControl || type == PieceType::kByte;
}

void check_pieces(PieceModelFile* model) {
  std::unordered_set<std::string_view> plain, reserved;
  plain.reserve(model->pieces.size());
  bool unknown = false;
  std::size_t bytes = 0;
  for (std::uint32_t id = 0; id < model->pieces.size(); ++id) {
    const Piece& piece = model->pieces[id];
    const std::string where = "piece " + std::to_string(id);
    if (piece.text.empty()) refuse(where + " is empty");
    if (piece.text.size() > kMaxPieceSize) refuse(where + " is too long");
    if (!std::isfinite(piece.score)) refuse(where + " has a score that is no number");
    if (!(is_reserved(piece.type) ? reserved : plain).insert(piece.text).second) {
      refuse(where + " is there twice");
    }
    // The library can look such a piece up in either of two ways.
    model->ambiguous |= reserved.contains(piece.text) && plain.contains(piece.text);
    if (piece.type == PieceType::kUnknown) {
      if (unknown) refuse(where + " is a second unknown piece");
      unknown = true;
      model->unknown = id;
    }
    if (piece.type != PieceType::kByte) continue;
    if (!model->byte_fallback) refuse(where + " is a byte, and the model has no byte fallback");
    if (byte_of(piece.text) < 0) refuse(where + " is no byte as <0x0A> is");
    ++bytes;
  }
  if (plain.empty()) refuse("it has no pieces");
  if (!unknown) refuse("it has no unknown piece");
  if (model->byte_fallback && bytes != 256) refuse("not all 256 bytes are among its pieces");
}

}  // namespace

PieceModelFile PieceModelFile::parse(std::span<const std::uint8_t> data) {
  PieceModelFile model;
  model.begin_piece = "<s>";
  model.end_piece = "</s>";
  bool trainer = false, normalizer = false;
  Message message(data, "the file");
  for (Field field; message.next(&field);) {
    switch (field.number) {
      case 1:
        if (model.pieces.size() == kMaxPieces) refuse("it has more pieces than can be used");
        model.pieces.push_back(parse_piece(message.message(field)));
        break;
      case 2:
        parse_trainer(message.message(field), &model);
        trainer = true;
        break;
      case 3:
        parse_normalizer(message.message(field), &model);
        normalizer = true;
        break;
      case 5:
        model.denormalizes = parse_denormalizer(message.message(field));
        break;
      default:
        break;
    }
  }
  if (model.begin_piece.empty()) model.begin_piece = "<s>";
  if (model.end_piece.empty()) model.end_piece = "</s>";
  if (!trainer) refuse("it has no trainer_spec: it is cut, or another file");
  if (!normalizer) refuse("it has no normalizer_spec: it is cut, or another file");
  check_pieces(&model);
  CharacterMap{model.charsmap};  // throws when it is broken
  return model;
}

std::string PieceModelFile::why_not_native() const {
  if (type != PieceModelType::kBpe && type != PieceModelType::kUnigram) {
    return "it is a SentencePiece model of words or characters";
  }
  if (whitespace_as_suffix) return "its SentencePiece model puts white space behind words";
  if (!escape_whitespace) return "its SentencePiece model leaves white space as it is";
  if (ambiguous) return "its SentencePiece model has one text as two pieces";
  const Utf8Check is_utf8 = utf8_check(Level::kScalar);
  bool zero = false, negative_zero = false;  // which versions of the library tell apart, or not
  for (const Piece& piece : pieces) {
    const auto* text = reinterpret_cast<const std::uint8_t*>(piece.text.data());
    if (piece.text.find('\0') != std::string::npos || !is_utf8(text, piece.text.size())) {
      return "its SentencePiece model has a piece that is not text";
    }
    if (piece.text.size() > kMaxNativePiece) return "its SentencePiece model has a very long piece";
    if (piece.type == PieceType::kUnused) return "its SentencePiece model has unused pieces";
    // Versions of the library differ in what they make of these.
    if (is_reserved(piece.type) && decode_utf8(text).size == piece.text.size()) {
      return "its SentencePiece model has a control symbol of one character";
    }
    if (piece.score == 0 && piece.type == PieceType::kNormal) {
      (std::signbit(piece.score) ? negative_zero : zero) = true;
    }
  }
  if (zero && negative_zero) return "its SentencePiece model has the scores 0 and -0";
  return "";
}

std::vector<std::uint32_t> PieceModelFile::byte_ids() const {
  std::vector<std::uint32_t> ids;
  if (!byte_fallback) return ids;
  ids.resize(256);
  for (std::uint32_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].type == PieceType::kByte) {
      ids[static_cast<std::size_t>(byte_of(pieces[id].text))] = id;
    }
  }
  return ids;
}

}  // namespace tokpack
