# The inline C twins of mapped_memory.py. `faulted` is a macro, as the frame that called sigsetjmp must still be there.
cdef extern from *:
    """
    #include <setjmp.h>
    #include <signal.h>
    #include <string.h>

    static __thread sigjmp_buf everlog_way_back;
    static __thread volatile sig_atomic_t everlog_guarded;
    static struct sigaction everlog_bus_before;

    static void everlog_on_bus(int number, siginfo_t *info, void *context) {
        if (everlog_guarded) {
            everlog_guarded = 0;
            siglongjmp(everlog_way_back, 1);
        }
        if (everlog_bus_before.sa_flags & SA_SIGINFO)
            everlog_bus_before.sa_sigaction(number, info, context);
        else if (everlog_bus_before.sa_handler != SIG_DFL && everlog_bus_before.sa_handler != SIG_IGN)
            everlog_bus_before.sa_handler(number);
        else
            sigaction(SIGBUS, &everlog_bus_before, NULL);  /* the access is tried again and ends the process */
    }

    /* Once a kernel: what was there before is asked when the lost page is not ours. */
    static void everlog_guard(void) {
        static volatile int installed;
        if (!installed) {
            struct sigaction ours;
            memset(&ours, 0, sizeof ours);
            ours.sa_sigaction = everlog_on_bus;
            ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
            sigemptyset(&ours.sa_mask);
            sigaction(SIGBUS, NULL, &everlog_bus_before);
            if (everlog_bus_before.sa_sigaction != everlog_on_bus) sigaction(SIGBUS, &ours, NULL);
            installed = 1;
        }
        everlog_guarded = 1;
    }

    #define everlog_faulted() (everlog_guard(), sigsetjmp(everlog_way_back, 1))
    #define everlog_unguard() ((void)(everlog_guarded = 0))
    #define everlog_ahead(p, i) __builtin_prefetch((p) + (i))
    """
    bint faulted "everlog_faulted"() noexcept nogil
    void unguard "everlog_unguard"() noexcept nogil
    void ahead "everlog_ahead"(const unsigned char* source, Py_ssize_t position) noexcept nogil


cdef inline const unsigned char* address(const unsigned char[::1] view) noexcept nogil:
    return &view[0]
