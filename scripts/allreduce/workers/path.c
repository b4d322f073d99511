/* A worker of scripts/allreduce: the way that an all-reduce takes, and nothing else. A worker tells its agent, which it shares
   with the workers of its host, over a Unix socket; the agents of the hosts send each other what a ring carries, from memory
   that stays in the cache, and look at nothing; an agent tells its workers. No client, agent, agent and client that pass a
   bucket on can take less time, nor less processor time. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, PORT = 29700, PIECE = 256 << 10 };

static char sent[PIECE], received[PIECE];

static void check(int ok, const char *what) {
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static long smaller(long a, long b) { return a < b ? a : b; }

static int local(const char *path, int listens) {
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	strncpy(to.sun_path, path, sizeof to.sun_path - 1);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (listens) {
		check(bind(fd, (struct sockaddr *)&to, sizeof to) == 0 && listen(fd, MOST) == 0, path);
		return fd;
	}
	while (connect(fd, (struct sockaddr *)&to, sizeof to)) { /* its agent is yet to listen */
		check(errno == ENOENT || errno == ECONNREFUSED, path);
		usleep(1000);
	}
	return fd;
}

/* dial connects to the agent of a host, once it listens. */
static int dial(const char *host) {
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
	check(inet_pton(AF_INET, host, &to.sin_addr) == 1, host);
	for (;;) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
			return fd;
		check(errno == ECONNREFUSED, host);
		close(fd);
		usleep(1000);
	}
}

/* exchange sends so many bytes to each peer, and receives as many. */
static void exchange(int *peers, int n, long bytes) {
	long out[MOST], in[MOST], rest = 2 * bytes * n;
	for (int i = 0; i < n; i++)
		out[i] = in[i] = bytes;
	while (rest > 0) {
		struct pollfd wait[MOST];
		for (int i = 0; i < n; i++) {
			long k = out[i] ? send(peers[i], sent, smaller(out[i], PIECE), MSG_NOSIGNAL) : 0;
			check(k >= 0 || errno == EAGAIN, "send");
			if (k > 0)
				out[i] -= k, rest -= k;
			wait[i] = (struct pollfd){peers[i], (in[i] ? POLLIN : 0) | (out[i] ? POLLOUT : 0), 0};
		}
		if (rest == 0) /* what was sent last was the last of all: nobody would wake it */
			break;
		poll(wait, n, -1);
		for (int i = 0; i < n; i++) {
			if (!(wait[i].revents & (POLLIN | POLLHUP)))
				continue;
			long k = recv(peers[i], received, smaller(in[i], PIECE), 0);
			if (k == 0)
				exit(0);
			check(k > 0 || errno == EAGAIN, "recv");
			if (k > 0)
				in[i] -= k, rest -= k;
		}
	}
}

/* agent serves the workers that come, until one of them ends. */
static void agent(int door, int workers, int host, char **hosts, int n) {
	int peers[MOST], clients[MOST], yes = 1;
	for (int i = 0; i < host; i++)
		peers[i] = dial(hosts[i]);
	if (n > 1) {
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
		int in = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(in, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
		check(bind(in, (struct sockaddr *)&at, sizeof at) == 0 && listen(in, MOST) == 0, "listen");
		for (int i = host; i < n - 1; i++)
			check((peers[i] = accept(in, NULL, NULL)) >= 0, "accept");
	}
	for (int i = 0; i < n - 1; i++) {
		setsockopt(peers[i], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
		fcntl(peers[i], F_SETFL, O_NONBLOCK);
	}
	for (int i = 0; i < workers; i++)
		check((clients[i] = accept(door, NULL, NULL)) >= 0, "accept");
	for (;;) {
		long bytes;
		for (int i = 0; i < workers; i++)
			if (read(clients[i], &bytes, sizeof bytes) != sizeof bytes)
				exit(0);
		exchange(peers, n - 1, bytes);
		for (int i = 0; i < workers; i++)
			check(write(clients[i], "", 1) == 1, "write");
	}
}

static int ascending(const void *a, const void *b) {
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* Arguments: the directory of the agents' sockets, then the hosts' addresses; none: one host. */
int main(int argc, char **argv) {
	int rank = atoi(getenv("RANK")), world = atoi(getenv("WORLD_SIZE")), n = argc - 2;
	int host = n ? rank : 0, mine = n || rank == 0;
	char door[sizeof((struct sockaddr_un *)0)->sun_path];
	snprintf(door, sizeof door, "%s/path.%d", argv[1], host);
	pid_t served = getpid();
	if (mine) {
		int fd = local(door, 1);
		served = fork();
		check(served >= 0, "fork");
		if (served == 0)
			agent(fd, n ? 1 : world, host, argv + 2, n ? n : 1);
		close(fd);
	}
	int to = local(door, 0), fd = local(getenv("ALLREDUCE_SOCKET"), 0);
	FILE *in = fdopen(fd, "r");
	dprintf(fd, "path %d %d %d\n", rank, getpid(), served);

	long size;
	int count;
	char done;
	while (fscanf(in, "%*s %ld %d", &size, &count) == 2) {
		long bytes = 2 * size / world; /* to each of the others: together what a ring sends */
		double *times = calloc(count + 1, sizeof *times);
		for (int i = 0; i < count || i == 0; i++) {
			double start = now();
			check(write(to, &bytes, sizeof bytes) == sizeof bytes && read(to, &done, 1) == 1, "the agent");
			times[i] = now() - start;
		}
		qsort(times, count, sizeof *times, ascending);
		dprintf(fd, "%.0f 0\n", times[count / 2]);
		free(times);
	}
	return 0;
}
