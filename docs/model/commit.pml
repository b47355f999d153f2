/* The commits of one table, as docs/FORMAT.md has them under "How a commit is made".

Two writers store one batch each, offer it, and commit what is offered. A sweeper raises the horizon,
deletes staged files, and after an hour old commits. A put may be lost, stay without an answer, and land
at any later time, also after its sender died or gave up. Writers die at any step and start again.

Before an action stands the function of the package that it stands for. MUTANT removes one rule: then
an assertion fails, which docs/model/check.py expects. */

#ifndef MUTANT
#define MUTANT 0
#endif
#define NO_CHECK 1    /* nothing is checked after the answer to a put */
#define NO_RESOLVE 2  /* a put without an answer is taken for lost, and goes to the next version */
#define NO_HORIZON 3  /* a commit may name a file that was staged below the horizon */
#define SAME_BODY 4   /* after a lost race the same body goes to the next version */
#define NO_SESSION 5  /* an offer counts although its writer has opened its id again */
#define NO_HOUR 6     /* commits are deleted as soon as the mark is set */
#define NO_LEAVE 7    /* nobody leaves the version after a request to its author */
#define NO_DATES 8    /* after the answer it is checked what is there, and not how old it is */

#ifndef VERSIONS
#define VERSIONS 5    /* the log has the versions 0 to VERSIONS - 1, of which 0 creates it */
#endif
#ifndef DEATHS
#define DEATHS 0      /* how often writer 0 dies */
#endif
#ifndef REQUESTS
#define REQUESTS 0    /* how many requests are made */
#endif
#ifndef SWEEPS
#define SWEEPS 1
#endif
#ifndef OPEN
#define OPEN 0        /* whether writer 1 is open in version 0 */
#endif

#define WRITERS 2
#define SWEEPER 2     /* processes: writers 0 and 1, and the sweeper */
#define PROCESSES 3
#define LATE 3        /* puts 0 to 2 are those of the processes, and 3 one that nobody waits for any more */
#define PUTS 4
#define NONE 255

/* ------------------------------------------------------------------------------------ storage */

typedef Put {         /* a commit on its way: the version, the token, and what it says */
  bit sent;
  byte version;
  byte author;        /* the token: a process in one of its lives puts one body to a version */
  byte nonce;
  byte adds[WRITERS]; /* of a writer's batch: the session that staged the file that is added, or 0 */
  bit opens;          /* the author's id, which gets the next session */
  bit requests;
  bit patient;        /* its author has waited for that of a request in vain */
  byte horizon;       /* of a sweep, else 0 */
  byte mark
}
typedef Fold {        /* the fold of the log up to a version */
  byte file[WRITERS]; /* the session that staged the batch's file, or 0: the batch does not count */
  byte session[WRITERS];
  byte horizon;
  byte mark;
  byte request        /* the author of the request that this version is, or NONE */
}
typedef File { bit exists; byte staged }

Put puts[PUTS];
bit present[VERSIONS];      /* the objects of commits, and their tokens */
byte author[VERSIONS]; byte nonce[VERSIONS];
bit younger[VERSIONS];      /* by the dates of the objects: than a later version */
Fold state[VERSIONS];
byte top;                   /* the newest version */
File files[4];              /* of a writer's session */
#define FILE(w, s) files[(w) * 2 + (s) - 1]
byte clean;                 /* commits below it may be deleted: the mark has stood for an hour */
bit stale[PROCESSES];       /* half an hour has passed since the process knew the newest version */
bit refused[4];             /* the user was told that the session's batch is not stored */
byte deaths, requests;

/* A put arrives. Where its version is free the object is created. It belongs to the log if it
follows the newest version; else it lies below the mark, and nobody reads it. */
inline land(put) {
  puts[put].sent = 0;
  if
  :: present[puts[put].version] -> skip
  :: else ->
    present[puts[put].version] = 1;
    author[puts[put].version] = puts[put].author;
    nonce[puts[put].version] = puts[put].nonce;
    if
    :: puts[put].version == top + 1 -> fold(put)
    :: else -> younger[puts[put].version] = 1
    fi
  fi
}

inline fold(put) {
  assert(state[top].request == NONE || state[top].request == puts[put].author || puts[put].patient);
  top++;
  for (w : 0 .. WRITERS - 1) {
    state[top].file[w] = state[top - 1].file[w];
    state[top].session[w] = state[top - 1].session[w];
    if
    :: puts[put].adds[w] ->
      assert(!state[top].file[w]);                        /* a batch counts once */
      assert(FILE(w, puts[put].adds[w]).exists);          /* a commit names what is there */
      assert(!refused[w * 2 + puts[put].adds[w] - 1]);    /* what was refused does not appear */
      state[top].file[w] = puts[put].adds[w]
    :: else -> skip
    fi
  }
  w = 0;
  if
  :: puts[put].opens -> state[top].session[puts[put].author] = state[top].session[puts[put].author] + 1
  :: else -> skip
  fi;
  state[top].horizon = (puts[put].horizon -> puts[put].horizon : state[top - 1].horizon);
  state[top].mark = (puts[put].horizon -> puts[put].mark : state[top - 1].mark);
  state[top].request = (puts[put].requests -> puts[put].author : NONE)
}

/* What nobody waits for any more may still land. */
inline give_up(me) {
  if
  :: puts[me].sent && !puts[LATE].sent ->
    puts[LATE].sent = 1;
    puts[LATE].version = puts[me].version;
    puts[LATE].author = puts[me].author;
    puts[LATE].nonce = puts[me].nonce;
    puts[LATE].adds[0] = puts[me].adds[0];
    puts[LATE].adds[1] = puts[me].adds[1];
    puts[LATE].opens = puts[me].opens;
    puts[LATE].requests = puts[me].requests;
    puts[LATE].patient = puts[me].patient;
    puts[LATE].horizon = puts[me].horizon;
    puts[LATE].mark = puts[me].mark
  :: else -> skip
  fi;
  puts[me].sent = 0
}

inline forget(put) {  /* so that equal states look equal */
  puts[put].version = 0; puts[put].author = 0; puts[put].nonce = 0; puts[put].adds[0] = 0; puts[put].adds[1] = 0;
  puts[put].opens = 0; puts[put].requests = 0; puts[put].patient = 0; puts[put].horizon = 0; puts[put].mark = 0
}

active proctype network() {
  byte w;
end:
  do
  :: d_step { puts[LATE].sent -> land(LATE); forget(LATE) }
  od
}

/* --------------------------------------------------------------------------------- one commit */

#define OURS(me) (author[puts[me].version] == me && nonce[puts[me].version] == puts[me].nonce)

/* engine/log/commit.py: Log._send and create_once. ``result`` is WON, LOST or UNKNOWN. */
#define WON 1
#define LOST 2
#define UNKNOWN 3
inline commit(me) {
  d_step {
    result = 0;
    puts[me].version = known + 1;
    puts[me].author = me;
    puts[me].nonce = life
  };
  do
  :: result -> break
  :: atomic {
       !result -> puts[me].sent = 1;     /* for the first time, or the same bytes again */
       if
       :: d_step { !present[puts[me].version] -> land(me); result = WON }
       :: d_step { land(me) }            /* it lands, or finds another, and the answer is lost */
       :: puts[me].sent = 0              /* it is lost */
       :: skip                           /* it is on its way, and no answer comes in time */
       fi;
       if
       :: result -> skip
       :: !result && MUTANT == NO_RESOLVE -> result = LOST
       :: !result && MUTANT != NO_RESOLVE ->
         if
         :: d_step { present[puts[me].version] -> result = (OURS(me) -> WON : LOST) }
         :: !present[puts[me].version]   /* nobody has it yet */
         :: result = UNKNOWN             /* a minute has passed */
         fi
       fi
     }
  od;
  skip;
  /* engine/log/follow.py: LogFollower.landed_late, where versions are deleted in any order. */
  d_step {
    if
    :: MUTANT != NO_CHECK && result == WON && stale[me] ->
      if
      :: puts[me].version > 1 && !present[puts[me].version - 1] -> result = UNKNOWN
      :: else -> skip
      fi;
      for (w : puts[me].version .. top) {
        if
        :: !present[w] || (w > puts[me].version && younger[puts[me].version] && MUTANT != NO_DATES) -> result = UNKNOWN
        :: else -> skip
        fi
      }
      w = 0
    :: else -> skip
    fi;
    give_up(me)
  }
}

/* engine/log/follow.py: LogFollower.catch_up, which opens the log again where it is stale. */
inline catch_up(me) {
  known = top;
  stale[me] = 0
}

/* engine/log/commit.py: Log._leave_to_requester. */
inline leave_to_requester(me) {
  if
  :: MUTANT == NO_LEAVE || state[known].request == NONE || state[known].request == me -> skip
  :: else ->
    if
    :: top > known -> d_step { catch_up(me) }
    :: puts[me].patient = 1
    fi
  fi
}

inline say_nothing(me) {
  puts[me].adds[0] = 0; puts[me].adds[1] = 0; puts[me].opens = 0; puts[me].requests = 0;
  puts[me].horizon = 0; puts[me].mark = 0; puts[me].patient = 0
}

/* ------------------------------------------------------------------------------------ writers */

/* engine/writing/append.py: check_open and AppendDraft: whether an offered batch may be committed. */
#define OFFERED(w, s) (FILE(w, s).exists && !state[known].file[w] \
  && (MUTANT == NO_SESSION || state[known].session[w] == s) \
  && (MUTANT == NO_HORIZON || FILE(w, s).staged >= state[known].horizon))

#define LAST (known + 1 == VERSIONS)

proctype writer(byte me) {
  byte known, life, result, session, w, other;
  other = 1 - me;
  if
  :: OPEN && me == 1 -> session = 1; goto stage
  :: else -> skip
  fi;
start: skip;
  /* Open the writer: a commit gives its id the next session, and tells what is stored already. */
  do
  :: atomic {
       catch_up(me); say_nothing(me);
       leave_to_requester(me);
       if
       :: LAST -> goto out
       :: else -> puts[me].opens = 1
       fi
     };
     commit(me);
     if
     :: result == WON -> break
     :: result == LOST -> skip
     :: result == UNKNOWN -> goto out
     fi
  od;
  skip;
  d_step { known = puts[me].version; session = state[known].session[me] };
stage: skip;
  /* engine/writing/stage.py: stage_offer. The file goes to the folder of the known version. Its name is an offer. */
  d_step {
    if
    :: !state[known].file[me] -> FILE(me, session).exists = 1; FILE(me, session).staged = known
    :: else -> skip                          /* last_event_number: it is stored */
    fi
  };
  do
  :: atomic { me == 0 && deaths < DEATHS -> deaths++; life++; goto start }
  :: atomic {
       /* engine/log/commit.py: Log.request. */
       requests < REQUESTS && me == 0 && !LAST -> requests++;
       catch_up(me); say_nothing(me);
       leave_to_requester(me);
       if
       :: LAST -> goto out
       :: else -> puts[me].requests = 1
       fi
     };
     commit(me);
     if
     :: result == UNKNOWN -> goto out
     :: else -> skip
     fi
  :: atomic {
       catch_up(me); say_nothing(me);
       leave_to_requester(me);
       if
       :: state[known].session[me] != session || LAST -> goto out
       :: else -> skip
       fi;
       if
       :: state[known].file[me] -> assert(!FILE(me, session).exists || state[known].file[me] == session); goto out
       :: !state[known].file[me] && !OFFERED(me, session) -> refused[me * 2 + session - 1] = 1; goto out
       :: !state[known].file[me] && OFFERED(me, session) -> puts[me].adds[me] = session
       fi;
       if                                    /* what others offer, judged by the log alone */
       :: OFFERED(other, 1) -> puts[me].adds[other] = 1
       :: OFFERED(other, 2) -> puts[me].adds[other] = 2
       :: skip
       fi
     };
again: skip;
     commit(me);
     if
     :: result == WON -> assert(state[top].file[me] == session); goto out    /* acknowledged */
     :: result == UNKNOWN -> goto out
     :: atomic { result == LOST && (MUTANT == SAME_BODY || MUTANT == NO_RESOLVE) && known + 2 < VERSIONS -> known++; goto again }
     :: result == LOST && !(MUTANT == SAME_BODY || MUTANT == NO_RESOLVE) -> skip
     fi
  od;
out: skip;
  d_step { say_nothing(me); puts[me].version = 0; known = 0; life = 0; result = 0; session = 0; other = 0 }
}

/* ---------------------------------------------------------------------------------- a sweeper */

active proctype sweeper() {
  byte known, life, result, w, s, left;
  left = SWEEPS;
  do
  :: left ->
    left--;
    /* engine/log/retained.py: raise_horizon. */
    atomic {
      catch_up(SWEEPER); say_nothing(SWEEPER);
      leave_to_requester(SWEEPER);
      if
      :: known == 0 || LAST -> break
      :: else -> puts[SWEEPER].horizon = known; puts[SWEEPER].mark = state[known].horizon
      fi
    };
    commit(SWEEPER);
    if
    :: result == UNKNOWN -> break
    :: else -> skip
    fi;
    /* engine/log/sweep.py: delete_unreferenced_files, by a snapshot that was the newest. */
    d_step { catch_up(SWEEPER); w = 0; s = 1 };
    do
    :: d_step { w < WRITERS ->
         if
         :: FILE(w, s).exists && FILE(w, s).staged < state[known].horizon && state[known].file[w] != s ->
           assert(state[top].file[w] != s);  /* what the log names stays */
           FILE(w, s).exists = 0
         :: else -> skip
         fi;
         if
         :: s == 1 -> s = 2
         :: else -> s = 1; w++
         fi }
    :: w == WRITERS -> break
    od;
    /* engine/log/sweep.py: delete_old_commits, once the mark has stood for an hour. */
    if
    :: MUTANT == NO_HOUR && state[known].mark -> clean = state[known].mark
    :: else -> skip
    fi
  :: break
  od
}

/* An hour passes, also for processes that wait for an answer. */
active proctype hour() {
  d_step {
    state[top].mark ->
      clean = state[top].mark;
      stale[0] = 1; stale[1] = 1; stale[SWEEPER] = 1
  }
}

#define DELETE(v) if :: present[v] -> present[v] = 0; author[v] = 0; nonce[v] = 0; younger[v] = 0 :: else -> skip fi

/* engine/log/sweep.py: delete_old_commits. An object store deletes in any order. */
active proctype cleaner() {
end:
  do
  :: clean > 1 -> atomic { DELETE(1) }
  :: clean > 2 -> atomic { DELETE(2) }
  :: clean > 3 -> atomic { DELETE(3) }
  od
}

init {
  d_step { present[0] = 1; author[0] = NONE; state[0].request = NONE; state[0].session[1] = OPEN };
  atomic { run writer(0); run writer(1) }
}
