// Sends lines of standard input to the door `forward` by Fluency, with acks.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.Map;
import org.komamitsu.fluency.EventTime;
import org.komamitsu.fluency.Fluency;
import org.komamitsu.fluency.fluentd.FluencyBuilderForFluentd;

class SendLines {
    public static void main(String[] arguments) throws Exception {
        FluencyBuilderForFluentd builder = new FluencyBuilderForFluentd();
        builder.setAckResponseMode(true); // without it, a lost chunk is not noticed
        builder.setSenderMaxRetryCount(1_000_000); // the default drops a chunk after seven retries
        builder.setSenderMaxRetryIntervalMillis(5_000);
        builder.setReadTimeoutMilli(60_000);
        builder.setMaxBufferSize(1024L * 1024 * 1024); // records that do not fit are refused
        builder.setWaitUntilBufferFlushed(3_600);
        builder.setErrorHandler(error -> System.err.println("chunk dropped: " + error));

        String host = System.getenv("FLUENT_HOST"); // a gateway or its load balancer
        int port = Integer.parseInt(System.getenv("FLUENT_PORT"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        try (Fluency fluency = builder.build(host, port)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Instant now = Instant.now();
                EventTime time = EventTime.fromEpoch((int) now.getEpochSecond(), now.getNano());
                fluency.emit("shop", time, Map.of("message", line));
            }
        }
    }
}
