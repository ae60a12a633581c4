// Hashing and compact encoding of architectures.
#include <millrace/core/model_graph.hpp>
