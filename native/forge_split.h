// Matrices whose product is computed in pieces of rows, so that a matrix larger than the memory for it can be
// streamed: each piece is a node of the graph that reads a part of the matrix only. A row of the product
// depends on one row of the matrix, so the pieces together are the product, bit for bit.
#pragma once

struct ggml_context;
struct ggml_tensor;

// ggml_mul_mat(context, matrix, x), in the pieces that were asked for with forge_model_split_matrix.
ggml_tensor * forge_mul_mat(ggml_context * context, ggml_tensor * matrix, ggml_tensor * x);
