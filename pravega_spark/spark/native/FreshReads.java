package pravega_spark;

import java.lang.reflect.Field;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;

/**
 * Lets each action plan its reads of our sources again, since Spark keeps what a Python source planned with its relation.
 *
 * Spark optimizes a plan once for each action and each micro-batch, and asks a source for its partitions after that. The
 * scans of one source in a plan share what the first of them planned. A source that took conditions keeps its plan.
 */
public final class FreshReads extends Rule {
    private final Field source;

    public FreshReads() throws Exception {
        source = PythonScan.class.getDeclaredField("ds");
        source.setAccessible(true);
    }

    /** Adds the rule to a session, and to those that its streaming queries clone from it. */
    public void addTo(SparkSession session) {
        scala.collection.immutable.Seq known = session.experimental().extraOptimizations();
        for (int i = 0; i < known.size(); ++i)
            if (known.apply(i).getClass().getName().equals(getClass().getName())) return;
        session.experimental().extraOptimizations_$eq(
            (scala.collection.immutable.Seq) known.appended(this));
    }

    public TreeNode apply(TreeNode plan) {
        scala.collection.immutable.Seq leaves = plan.collectLeaves();
        for (int i = 0; i < leaves.size(); ++i) {
            if (!(leaves.apply(i) instanceof DataSourceV2ScanRelation)) continue;
            DataSourceV2ScanRelation relation = (DataSourceV2ScanRelation) leaves.apply(i);
            String name = relation.relation().table().name();
            boolean isOurs = name.equals("pravega") || name.equals("pravega_kvt");
            if (isOurs && relation.scan() instanceof PythonScan && !relation.relation().options().getBoolean("pushFilters", false))
                sourceOf(relation.scan()).setReadInfo(null);
        }
        return plan;
    }

    private PythonDataSourceV2 sourceOf(Object scan) {
        try {
            return (PythonDataSourceV2) source.get(scan);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }
}
