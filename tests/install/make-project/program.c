/* Includes the header for C, and runs with the library loaded. */
#include <millrace.h>

int main(void) { return 0; }
