/* Broadcasts of MPI among the processes of one host: mpirun -n MEMBERS mpi_peer BYTES COUNT. Rank 0
 * prints the seconds of so many broadcasts, one after the other, from the first process's begin to
 * the last one's end, or what is wrong. Processes of MPI compute while they wait, so they end
 * afterwards. */
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

static uint64_t word_of(uint64_t place) { return 0x9e3779b97f4a7c15u + place; }

int main(int argc, char** argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc != 3)
    MPI_Abort(MPI_COMM_WORLD, 2);
  uint64_t bytes = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
  uint64_t words = bytes / sizeof(uint64_t);
  uint64_t* data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  for (uint64_t i = 0; i < words; ++i)
    data[i] = rank == 0 ? word_of(i) : 0;
  MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  double begun = now();
  for (uint64_t n = 0; n < count; ++n)
    MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
  double ended = now(), first, last;
  MPI_Reduce(&begun, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
  MPI_Reduce(&ended, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  int wrong = 0, any = 0;
  for (uint64_t i = 0; i < words; ++i)
    wrong |= data[i] != word_of(i);
  MPI_Reduce(&wrong, &any, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0 && any)
    puts("wrong bytes");
  else if (rank == 0)
    printf("%.9f\n", last - first);
  free(data);
  MPI_Finalize();
  return 0;
}
