// The project around the tree has a program.
#include <millrace/runtime/node/node.hpp>

int main() {}
