/* Broadcasts of MPI among the processes of one host. Started by mpirun; rank 0 reads lines
 * "BYTES COUNT" and prints the seconds of so many broadcasts, one after the other, from the first
 * process's begin to the last one's end, or what is wrong. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t word_of(uint64_t version, uint64_t place) {
  return version * 0x9e3779b97f4a7c15u + place;
}

int main(int argc, char** argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  uint64_t* data = NULL;
  uint64_t allocated = 0, version = 0;
  if (rank == 0) {
    puts("ready");
    fflush(stdout);
  }
  for (;;) {
    unsigned long long command[2] = {0, 0};
    if (rank == 0 && scanf("%llu %llu", &command[0], &command[1]) != 2)
      command[1] = 0;
    MPI_Bcast(command, 2, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
    if (command[1] == 0)
      break;
    uint64_t bytes = command[0], words = bytes / sizeof(uint64_t);
    if (allocated != bytes) {
      free(data);
      data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      allocated = bytes;
    }
    ++version;
    for (uint64_t i = 0; i < words; ++i)
      data[i] = rank == 0 ? word_of(version, i) : 0;
    MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = now();
    for (unsigned long long n = 0; n < command[1]; ++n)
      MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    double ended = now(), first, last;
    MPI_Reduce(&begun, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&ended, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    int wrong = 0, any = 0;
    for (uint64_t i = 0; i < words; ++i)
      wrong |= data[i] != word_of(version, i);
    MPI_Reduce(&wrong, &any, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      if (any)
        puts("wrong bytes");
      else
        printf("%.9f\n", last - first);
      fflush(stdout);
    }
  }
  free(data);
  MPI_Finalize();
  return 0;
}
