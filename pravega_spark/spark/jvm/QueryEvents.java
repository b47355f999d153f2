package pravega_spark;

import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;

import org.apache.spark.sql.streaming.SourceProgress;
import org.apache.spark.sql.streaming.StreamingQueryListener;

/** Puts the events of queries that read our streams into a queue, for one listener in Python. */
final class PassedEvents extends StreamingQueryListener {
    private final int number;
    private final String mark;
    private final BlockingQueue events;
    private final Set runs = ConcurrentHashMap.newKeySet();

    PassedEvents(int number, String mark, BlockingQueue events) {
        this.number = number;
        this.mark = mark;
        this.events = events;
    }

    private void pass(String kind, String event) { events.add(number + " " + kind + " " + event); }

    public void onQueryStarted(StreamingQueryListener.QueryStartedEvent event) {}

    public void onQueryProgress(StreamingQueryListener.QueryProgressEvent event) {
        SourceProgress[] sources = event.progress().sources();
        for (int i = 0; i < sources.length; ++i) {
            String end = sources[i].endOffset();
            if (end == null || !end.contains(mark)) continue;
            runs.add(event.progress().runId());
            pass("Progress", event.json());
            return;
        }
    }

    public void onQueryIdle(StreamingQueryListener.QueryIdleEvent event) {
        if (runs.contains(event.runId())) pass("Idle", event.json());
    }

    public void onQueryTerminated(StreamingQueryListener.QueryTerminatedEvent event) {
        if (runs.remove(event.runId())) pass("Terminated", event.json());
    }
}

/**
 * The events that wait for the listeners of this process, which one thread of Python takes.
 *
 * Spark calls a listener in its own thread, and at a query's start in the query's. A call into Python from there would
 * hold that thread, and py4j keeps a connection, and a thread at its other end, for each thread that has called.
 */
public final class QueryEvents {
    private final BlockingQueue events = new LinkedBlockingQueue();

    /** Returns what to add to a session; {@code mark} is in the end offsets of the queries that are meant. */
    public StreamingQueryListener listener(int number, String mark) { return new PassedEvents(number, mark, events); }

    /** Returns the next event when there is one: the listener's number, the kind and the JSON. */
    public String take() throws InterruptedException { return (String) events.take(); }

    /** Lets {@link #take} return an empty text after all events that are there. */
    public void end() { events.add(""); }
}
