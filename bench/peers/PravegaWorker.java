// Measures Pravega by its own client. It answers each line of JSON with one: see worker.py.

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public final class PravegaWorker {
    private static final String SCOPE = "bench";
    private static final int EVENT_BYTES = 100;
    private static final int KEYS = 1_000;
    private static final int WRITERS = 16;
    private static final int SEGMENTS = 4;
    private static final ByteArraySerializer BYTES = new ByteArraySerializer();
    private static final ClientConfig CLIENT =
            ClientConfig.builder().controllerURI(URI.create("tcp://127.0.0.1:9090")).build();
    private static final byte[] EVENT = "e".repeat(EVENT_BYTES).getBytes(StandardCharsets.US_ASCII);

    private final StreamManager streams = StreamManager.create(CLIENT);
    private final EventStreamClientFactory factory =
            EventStreamClientFactory.withScope(SCOPE, CLIENT);
    private int number = 0;

    public static void main(String[] arguments) throws Exception {
        PravegaWorker worker = new PravegaWorker();
        worker.streams.createScope(SCOPE);
        worker.create(1); // the server answers
        System.out.println("ready");
        Gson gson = new Gson();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Object answer;
            try {
                answer = worker.answer(gson.fromJson(line, JsonObject.class));
            } catch (Exception error) {
                answer = Map.of("error", error.toString());
            }
            System.out.println(gson.toJson(answer));
        }
        System.exit(0);
    }

    private Object answer(JsonObject question) throws Exception {
        int calls = question.has("calls") ? question.get("calls").getAsInt() : 0;
        double seconds = question.has("seconds") ? question.get("seconds").getAsDouble() : 0;
        switch (question.get("do").getAsString()) {
            case "fill":
                return fill(question.get("file").getAsString());
            case "append":
                return append(calls, seconds);
            case "end_to_end":
                return endToEnd(calls, seconds);
            case "pipelined":
                return pipelined(calls);
            case "writers":
                return writers(seconds);
            case "transaction":
                return transactions(calls, seconds);
            case "read":
                return read(question.get("stream").getAsString(), question.get("rows").getAsInt());
            case "rows":
                return rows(calls, seconds);
            default:
                throw new IllegalArgumentException(question.toString());
        }
    }

    private String fill(String path) throws Exception {
        String stream = create(SEGMENTS);
        try (FileInputStream file = new FileInputStream(path);
                EventStreamWriter<byte[]> writer = writer(stream)) {
            int row = 0;
            byte[] event = file.readNBytes(EVENT_BYTES);
            while (event.length == EVENT_BYTES) {
                writer.writeEvent("key-" + row++ % KEYS, event);
                event = file.readNBytes(EVENT_BYTES);
            }
            writer.flush();
        }
        return stream;
    }

    private List<Double> append(int calls, double seconds) throws Exception {
        try (EventStreamWriter<byte[]> writer = writer(create(SEGMENTS))) {
            return times(() -> writer.writeEvent("key", EVENT).get(), calls, seconds);
        }
    }

    private List<Double> endToEnd(int calls, double seconds) throws Exception {
        String stream = create(1);
        try (Reader reader = new Reader(stream);
                EventStreamWriter<byte[]> writer = writer(stream)) {
            writer.writeEvent("key", EVENT).get();
            reader.next();
            ExecutorService thread = Executors.newSingleThreadExecutor();
            try {
                return times(() -> {
                    Future<byte[]> arrived = thread.submit(reader::next);
                    Thread.sleep(5); // the reader waits
                    long sent = System.nanoTime();
                    writer.writeEvent("key", EVENT);
                    arrived.get();
                    return (System.nanoTime() - sent) / 1e6;
                }, calls, seconds);
            } finally {
                thread.shutdown();
            }
        }
    }

    private double pipelined(int count) throws Exception {
        try (EventStreamWriter<byte[]> writer = writer(create(SEGMENTS))) {
            long begun = System.nanoTime();
            CompletableFuture<Void> last = null;
            for (int row = 0; row < count; row++) {
                last = writer.writeEvent("key-" + row % KEYS, EVENT);
            }
            writer.flush();
            last.get();
            return count / ((System.nanoTime() - begun) / 1e9);
        }
    }

    private List<List<Double>> writers(double seconds) throws Exception {
        String stream = create(SEGMENTS);
        ExecutorService threads = Executors.newFixedThreadPool(WRITERS);
        CyclicBarrier together = new CyclicBarrier(WRITERS);
        List<Future<List<Double>>> found = new ArrayList<>();
        for (int each = 0; each < WRITERS; each++) {
            String key = "key-" + each;
            found.add(threads.submit(() -> {
                try (EventStreamWriter<byte[]> writer = writer(stream)) {
                    writer.writeEvent(key, EVENT).get();
                    together.await();
                    Call call = () -> writer.writeEvent(key, EVENT).get();
                    return times(call, Integer.MAX_VALUE, seconds);
                }
            }));
        }
        List<List<Double>> all = new ArrayList<>();
        for (Future<List<Double>> each : found) {
            all.add(each.get());
        }
        threads.shutdown();
        return all;
    }

    private List<Double> transactions(int calls, double seconds) throws Exception {
        EventWriterConfig config = EventWriterConfig.builder().build();
        String stream = create(SEGMENTS);
        try (TransactionalEventStreamWriter<byte[]> writer =
                factory.createTransactionalEventWriter(stream, BYTES, config)) {
            return times(() -> {
                Transaction<byte[]> transaction = writer.beginTxn();
                for (int row = 0; row < 100; row++) {
                    transaction.writeEvent("key-" + row, EVENT);
                }
                transaction.commit();
                while (transaction.checkStatus() != Transaction.Status.COMMITTED) {
                    Thread.sleep(1);
                }
                return null;
            }, calls, seconds);
        }
    }

    private double read(String stream, int rows) throws Exception {
        try (Reader reader = new Reader(stream)) {
            long begun = System.nanoTime();
            for (int row = 0; row < rows; row++) {
                reader.next();
            }
            return rows / ((System.nanoTime() - begun) / 1e9);
        }
    }

    private Map<String, Object> rows(int calls, double seconds) throws Exception {
        String stream = create(SEGMENTS);
        List<Double> times;
        try (EventStreamWriter<byte[]> writer = writer(stream)) {
            times = times(() -> writer.writeEvent("key", EVENT).get(), calls, seconds);
        }
        long begun = System.nanoTime();
        Map<Byte, Integer> counts = new HashMap<>();
        try (Reader reader = new Reader(stream)) {
            for (int row = 0; row < times.size(); row++) {
                counts.merge(reader.next()[0], 1, Integer::sum);
            }
        }
        return Map.of("times", times, "aggregate", (System.nanoTime() - begun) / 1e6);
    }

    private interface Call {
        Object run() throws Exception;
    }

    /** Returns the milliseconds of each call; a call that returns a number has measured itself. */
    private static List<Double> times(Call call, int calls, double seconds) throws Exception {
        List<Double> found = new ArrayList<>();
        long end = System.nanoTime() + (long) (1e9 * seconds);
        while (found.size() < calls && (found.isEmpty() || System.nanoTime() < end)) {
            long begun = System.nanoTime();
            Object own = call.run();
            found.add(own instanceof Double ? (Double) own : (System.nanoTime() - begun) / 1e6);
        }
        return found;
    }

    private String create(int segments) {
        String stream = "stream-" + number++;
        StreamConfiguration configuration = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(segments)).build();
        streams.createStream(SCOPE, stream, configuration);
        return stream;
    }

    private EventStreamWriter<byte[]> writer(String stream) {
        return factory.createEventWriter(stream, BYTES, EventWriterConfig.builder().build());
    }

    /** The only reader of a group of its own. */
    private final class Reader implements AutoCloseable {
        private final ReaderGroupManager groups = ReaderGroupManager.withScope(SCOPE, CLIENT);
        private final EventStreamReader<byte[]> reader;

        Reader(String stream) {
            String group = "group" + number++;
            groups.createReaderGroup(group, ReaderGroupConfig.builder()
                    .stream(Stream.of(SCOPE, stream)).disableAutomaticCheckpoints().build());
            reader = factory.createReader("reader", group, BYTES, ReaderConfig.builder().build());
        }

        byte[] next() throws ReinitializationRequiredException {
            while (true) {
                EventRead<byte[]> read = reader.readNextEvent(10_000);
                if (read.getEvent() != null) {
                    return read.getEvent();
                }
            }
        }

        @Override
        public void close() {
            reader.close();
            groups.close();
        }
    }
}
