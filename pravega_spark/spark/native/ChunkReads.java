// For Spark 4.2 and 4.3; versions.py has what is another text for older ones.
package pravega_spark;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.locks.Lock;
import java.util.function.BiFunction;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.DataSource;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.streaming.Source;
import org.apache.spark.sql.execution.streaming.runtime.SerializedOffset;
import org.apache.spark.sql.execution.streaming.runtime.StreamingRelation;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import py4j.CallbackClient;
import py4j.ClientServerConnection;
import py4j.GatewayServer;
import py4j.PythonClient;
import scala.Option;
import scala.collection.immutable.Seq;

/** The chunks of a read as the files of a Parquet relation; all of it runs on the driver alone. */
final class ChunkIndex implements FileIndex {
    private final StructType partitionSchema;
    private final String chunks;
    private final String error;
    private final List files = new ArrayList();

    /** Takes a line for each chunk; and, if the read cannot be planned, the error of its planning. */
    ChunkIndex(StructType partitionSchema, String chunks, String error) {
        this.partitionSchema = partitionSchema;
        this.chunks = chunks;
        this.error = error;
        if (!chunks.isEmpty()) {
            String[] lines = chunks.split("\n");
            for (int i = 0; i < lines.length; ++i) files.add(new ChunkFile(lines[i].split("\t")));
        }
    }

    public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
        if (!error.isEmpty()) throw new IllegalStateException(error);
        List predicates = new ArrayList();
        for (Iterator it = listed(partitionFilters).iterator(); it.hasNext(); )
            predicates.add(new PartitionFilter((Expression) it.next(), partitionSchema));
        List found = new ArrayList();
        for (Iterator it = files.iterator(); it.hasNext(); ) {
            ChunkFile file = (ChunkFile) it.next();
            if (isKept(file, predicates) && file.mayHoldAll(listed(dataFilters)))
                found.add(PartitionDirectory.apply(file.values, new FileStatus[] {file.status}));
        }
        return seq(found);
    }

    private static boolean isKept(ChunkFile file, List predicates) {
        for (Iterator it = predicates.iterator(); it.hasNext(); )
            if (!((PartitionFilter) it.next()).keeps(file)) return false;
        return true;
    }

    public Seq rootPaths() { return seq(new ArrayList()); }

    public String[] inputFiles() {
        String[] names = new String[files.size()];
        for (int i = 0; i < names.length; ++i) names[i] = ((ChunkFile) files.get(i)).status.getPath().toString();
        return names;
    }

    public void refresh() { }

    public long sizeInBytes() {
        long sum = 0;
        for (Iterator it = files.iterator(); it.hasNext(); ) sum += ((ChunkFile) it.next()).status.getLen();
        return sum;
    }

    public StructType partitionSchema() { return partitionSchema; }

    /** Two reads of the same chunks are the same to Spark's cache. */
    public boolean equals(Object other) {
        if (!(other instanceof ChunkIndex)) return false;
        ChunkIndex index = (ChunkIndex) other;
        return chunks.equals(index.chunks) && error.equals(index.error);
    }

    public int hashCode() { return chunks.hashCode(); }

    static Seq seq(List list) { return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq(); }

    static List listed(Seq list) { return scala.jdk.javaapi.CollectionConverters.asJava(list); }
}

/** A filter on columns that are constant in a file. */
final class PartitionFilter {
    private final BasePredicate predicate;
    private final int[] columns;

    PartitionFilter(Expression filter, StructType partitionSchema) {
        Seq references = filter.references().toSeq();
        predicate = Predicate$.MODULE$.create(filter, references);
        columns = new int[references.size()];
        for (int i = 0; i < columns.length; ++i)
            columns[i] = partitionSchema.fieldIndex(((Attribute) references.apply(i)).name());
    }

    boolean keeps(ChunkFile file) {
        Object[] row = new Object[columns.length];
        for (int i = 0; i < row.length; ++i) row[i] = file.values.genericGet(columns[i]);
        return predicate.eval(new GenericInternalRow(row));
    }
}

/** A chunk: its file, its constant columns, and what the log says about its other columns. */
final class ChunkFile {
    final FileStatus status;
    final GenericInternalRow values;
    private final long firstTimestamp;
    private final long lastTimestamp;
    private final double lowKey;
    private final double highKey;

    /** Fields: URL, bytes, scope, stream, segment, base offset, first and end row, times, key range. */
    ChunkFile(String[] f) {
        status = new FileStatus(Long.parseLong(f[1]), false, 0, 0L, 0L, new Path(java.net.URI.create(f[0])));
        values = new GenericInternalRow(new Object[] {
            UTF8String.fromString(f[2]), UTF8String.fromString(f[3]), UTF8String.fromString(f[2] + "/" + f[3]),
            Long.valueOf(f[4]), Long.valueOf(f[5]), Integer.valueOf(f[6]), Integer.valueOf(f[7])});
        firstTimestamp = Long.parseLong(f[8]);
        lastTimestamp = Long.parseLong(f[9]);
        lowKey = Double.parseDouble(f[10]);
        highKey = Double.parseDouble(f[11]);
    }

    boolean mayHoldAll(List filters) {
        for (Iterator it = filters.iterator(); it.hasNext(); )
            if (!mayHold((Expression) it.next())) return false;
        return true;
    }

    /** Returns false if no row can pass a filter: by its time, or by the segment of its key. */
    private boolean mayHold(Expression filter) {
        boolean isAnd = filter instanceof And;
        boolean isOr = filter instanceof Or;
        if (!isAnd && !isOr && !(filter instanceof BinaryComparison)) return true;
        Expression left = (Expression) filter.children().apply(0);
        Expression right = (Expression) filter.children().apply(1);
        if (isAnd) return mayHold(left) && mayHold(right);
        if (isOr) return mayHold(left) || mayHold(right);
        boolean isSwapped = left instanceof Literal;
        Expression column = isSwapped ? right : left;
        Expression literal = isSwapped ? left : right;
        if (!(column instanceof Attribute) || !(literal instanceof Literal)) return true;
        String name = ((Attribute) column).name();
        Object value = ((Literal) literal).value();
        if (name.equals("routing_key") && filter instanceof EqualTo && value instanceof UTF8String)
            return !column.dataType().equals(DataTypes.StringType) || holdsKey((UTF8String) value);
        if (!name.equals("timestamp") || !(value instanceof Long)) return true;
        long time = ((Long) value).longValue();
        if (filter instanceof EqualTo) return firstTimestamp <= time && time <= lastTimestamp;
        boolean isLess = filter instanceof LessThan;
        boolean isAtMost = filter instanceof LessThanOrEqual;
        boolean isGreater = filter instanceof GreaterThan;
        boolean isAtLeast = filter instanceof GreaterThanOrEqual;
        if (isSwapped ? isGreater : isLess) return firstTimestamp < time;
        if (isSwapped ? isAtLeast : isAtMost) return firstTimestamp <= time;
        if (isSwapped ? isLess : isGreater) return lastTimestamp > time;
        if (isSwapped ? isAtMost : isAtLeast) return lastTimestamp >= time;
        return true;
    }

    private boolean holdsKey(UTF8String key) {
        long hash = XXH64.hashUTF8String(key, 42L);
        double position = (hash >>> 11) / 9007199254740992.0;
        return lowKey <= position && position < highKey;
    }
}

/** The connection to Python that py4j keeps for a thread of the JVM, for ever, with a thread at its other end. */
final class OwnConnection {
    private OwnConnection() {}

    /** Closes that of this thread, if it has one; its next call opens another one. */
    static void close(GatewayServer gateway) {
        if (!(gateway.getCallbackClient() instanceof PythonClient)) return; // its connections are shared
        PythonClient python = (PythonClient) gateway.getCallbackClient();
        ClientServerConnection connection = python.getPerThreadConnection();
        if (connection == null) return;
        connection.shutdown();
        python.setPerThreadConnection(null);
        forget(python, connection);
    }

    private static void forget(PythonClient python, ClientServerConnection connection) {
        try {
            Lock lock = (Lock) field("lock").get(python);
            lock.lock();
            try {
                ((Deque) field("connections").get(python)).remove(connection);
            } finally {
                lock.unlock();
            }
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static Field field(String name) throws NoSuchFieldException {
        Field field = CallbackClient.class.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }
}

/** A streaming source whose offsets and batches a planner in Python decides. */
final class ChunkSource implements Source, SupportsTriggerAvailableNow {
    private final StructType schema;
    private final String name;
    private final ReadLimit limit;
    private final BiFunction planner;
    private final GatewayServer gateway;

    ChunkSource(StructType schema, String name, ReadLimit limit, BiFunction planner, GatewayServer gateway) {
        this.schema = schema;
        this.name = name;
        this.limit = limit;
        this.planner = planner;
        this.gateway = gateway;
    }

    private String ask(String verb, String argument) {
        String answer = (String) planner.apply(verb, argument);
        if (answer.startsWith("!")) throw new IllegalStateException(answer.substring(1));
        return answer;
    }

    public StructType schema() { return schema; }

    public ReadLimit getDefaultReadLimit() { return limit; }

    public org.apache.spark.sql.connector.read.streaming.Offset latestOffset(
            org.apache.spark.sql.connector.read.streaming.Offset start, ReadLimit limit) {
        String verb = limit instanceof ReadAllAvailable ? "latest" : "latest limited";
        return new SerializedOffset(ask(verb, start == null ? "" : start.json()));
    }

    public org.apache.spark.sql.connector.read.streaming.Offset reportLatestOffset() {
        String tail = ask("tail", "");
        return tail.isEmpty() ? null : new SerializedOffset(tail);
    }

    public void prepareForTriggerAvailableNow() { ask("available now", ""); }

    public Option getOffset() { throw new UnsupportedOperationException("latestOffset is used"); }

    public Dataset getBatch(Option start, org.apache.spark.sql.execution.streaming.Offset end) {
        String from = start.isEmpty() ? "" : ((org.apache.spark.sql.execution.streaming.Offset) start.get()).json();
        return (Dataset) planner.apply("batch", from + "\n" + end.json());
    }

    /** Spark calls this at the end of a query, in its thread, which has made all calls of the planner. */
    public void stop() {
        try {
            ask("stop", "");
        } finally {
            OwnConnection.close(gateway);
        }
    }

    public String toString() { return name; }
}

/** Makes a source, with a planner of its own, for each query over one streaming frame. */
final class ChunkDataSource extends DataSource {
    private final StructType schema;
    private final String name;
    private final ReadLimit limit;
    private final BiFunction planners;
    private final GatewayServer gateway;

    ChunkDataSource(SparkSession spark, StructType schema, String name, ReadLimit limit, BiFunction planners,
            GatewayServer gateway) {
        super(spark, "pravega_spark", DataSource.apply$default$3(), Option.apply(schema),
            DataSource.apply$default$5(), Option.empty(), DataSource.apply$default$7(), Option.empty(), Option.empty());
        this.schema = schema;
        this.name = name;
        this.limit = limit;
        this.planners = planners;
        this.gateway = gateway;
    }

    public Source createSource(String metadataPath) {
        return new ChunkSource(schema, name, limit, (BiFunction) planners.apply("open", metadataPath), gateway);
    }

    /** The name of this source is no class that Spark could load. */
    public Class providingClass() { return ChunkDataSource.class; }

    public Object providingInstance() { return this; }

    public boolean equals(Object other) { return this == other; }

    public int hashCode() { return System.identityHashCode(this); }
}

/** What Python calls. */
public final class ChunkReads {
    /** Returns a frame over the chunks; a frame with an error raises it when its files are listed. */
    public Dataset rows(SparkSession spark, StructType constants, StructType columns, java.util.Map options,
            String chunks, String error, boolean isStreaming) {
        HadoopFsRelation relation = new HadoopFsRelation(
            new ChunkIndex(constants, chunks, error), constants, columns, Option.empty(), new ParquetFileFormat(),
            (scala.collection.immutable.Map) PythonUtils.toScalaMap(options), spark);
        LogicalPlan plan = LogicalRelation$.MODULE$.apply(relation, isStreaming);
        return Dataset$.MODULE$.ofRows((org.apache.spark.sql.classic.SparkSession) spark, plan);
    }

    /** Returns a streaming frame; {@code planners} makes the planner of each query over it. */
    public Dataset stream(SparkSession spark, StructType schema, String name, long limit, BiFunction planners,
            GatewayServer gateway) {
        ReadLimit most = limit == 0 ? ReadLimit.allAvailable() : ReadLimit.maxRows(limit);
        LogicalPlan plan = new StreamingRelation(
            new ChunkDataSource(spark, schema, name, most, planners, gateway), "pravega_spark",
            DataTypeUtils.toAttributes(schema), StreamingRelation.apply$default$4());
        return Dataset$.MODULE$.ofRows((org.apache.spark.sql.classic.SparkSession) spark, plan);
    }
}
