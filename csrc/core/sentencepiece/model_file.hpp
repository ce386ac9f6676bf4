// A SentencePiece model file: the fields of its protobuf that decide ids and texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tokpack {

enum class PieceType : std::uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct Piece {
  std::string text;  // with U+2581 for a space
  float score = 0;
  PieceType type = PieceType::kNormal;
};

enum class PieceModelType : std::uint8_t { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

// Defaults are those of the protobuf.
struct PieceModelFile {
  std::vector<Piece> pieces;  // by id
  std::uint32_t unknown = 0;  // id of the unknown piece
  PieceModelType type = PieceModelType::kUnigram;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
  bool ambiguous = false;              // a control symbol and another piece have the same text
  std::string begin_piece, end_piece;  // names of the pieces around a document
  std::optional<std::string> unknown_surface;

  std::string charsmap;  // normalization rules; empty: none
  bool dummy_prefix = true;
  bool remove_extra_whitespace = true;
  bool escape_whitespace = true;
  bool denormalizes = false;  // decoding has normalization rules, too

  // Throws std::invalid_argument for what is no such file, is cut, or is not a whole model.
  static PieceModelFile parse(std::span<const std::uint8_t> data);

  // Why make_piece_encoder() does not take the model, though the library reads it: the first part
  // of a sentence. Empty when it does.
  std::string why_not_native() const;

  // The ids of the pieces of the 256 bytes; none without byte fallback.
  std::vector<std::uint32_t> byte_ids() const;
};

inline constexpr std::uint32_t kMaxPieces = 1u << 21;

}  // namespace tokpack
